"""MT-Bench's judge, by FastChat's own code: it rates an answer, or chooses between two runs'.

Only the request goes through `chat`: FastChat's client needs openai < 1 and a list of judges.
"""

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass
from os import devnull
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

from copyspec_eval import journal
from copyspec_eval.errors import DataError, needing
from copyspec_eval.openai_api import NoReplyError
from copyspec_eval.scoring.chat import ChatModel, ask_missing

REFERENCE_TURNS = {"mt_bench": 2, "mt_redundant": 1, "mt_bench_paper": 2, "mt_redundant_paper": 1}
"""For how many turns of a task FastChat's reference answers hold; for none of another task.
Of MT-Redundant's second turns, which ask other things, FastChat itself would show them."""

# The judge is shown the reference answer, if there is one.
_REFERENCE_CATEGORIES = ("math", "reasoning", "coding")
_KNOWN_JUDGE = "gpt-4"  # to FastChat; the judge's own name is put into the rows

# Servers are not deterministic even at temperature 0, so another judgement may be usable.
_NUM_JUDGEMENTS = 3

AnswerTurn = tuple[int, int]  # a question_id, and a turn counted from 1


@dataclass(frozen=True, slots=True)
class Conversation:
    """A user's two questions and a model's answers."""

    question_id: int
    category: str
    questions: tuple[str, str]
    answers: tuple[str, str]


class Match(NamedTuple):
    """What the judge is shown at a time: a turn of one conversation, or the same of two runs."""

    conversations: tuple[Conversation, ...]
    turn: int
    reference: Mapping[str, Any] | None  # the row of FastChat's reference answers

    @property
    def key(self) -> AnswerTurn:
        return self.conversations[0].question_id, self.turn

    def texts(self) -> Iterator[str]:
        """Questions and answers up to this turn."""
        for each in self.conversations:
            yield from (*each.questions[: self.turn], *each.answers[: self.turn])


class Judged(NamedTuple):
    """FastChat's row of each match of one task, from this command or an earlier one."""

    matches: Sequence[Match]
    rows: dict[AnswerTurn, dict[str, Any]]
    reasons: dict[AnswerTurn, str]  # why the others have none
    notes: list[str]  # on each line that was skipped in the judgement file

    def verdicts(self, turn: int) -> Counter[str]:
        """How often `a` wins, `b` wins, or neither, on a turn; as FastChat counts them."""
        rows = [row for row in self.rows.values() if row["turn"] == turn]
        agreed = (row["g1_winner"] if row["g1_winner"] == row["g2_winner"] else "" for row in rows)
        return Counter({"model_1": "a", "model_2": "b"}.get(winner, "tie") for winner in agreed)


def matches(
    task: str,
    runs: Sequence[Sequence[Conversation]],
    references: Mapping[int, Mapping[str, Any]],
    all_references: bool = False,
) -> list[Match]:
    """Both turns of every question of `task` that all `runs`, one or two, answered.

    With `all_references` the judge is shown the answers that FastChat itself would show.
    """
    num_turns = REFERENCE_TURNS.get(task, 0)
    if all_references and num_turns:
        num_turns = 2
    first, *others = ({(each.question_id, each.questions): each for each in run} for run in runs)
    asked = []
    for key, each in first.items():
        if all(key in other for other in others):
            has_one = each.category in _REFERENCE_CATEGORIES
            for turn in (1, 2):
                shown = references.get(each.question_id) if has_one and turn <= num_turns else None
                asked.append(Match((each, *(other[key] for other in others)), turn, shown))
    if not asked:
        raise DataError(f"{task}: no question that both runs answered; give two runs of one task")
    return asked


def is_rating(score: float) -> bool:
    return 1 <= score <= 10


def judge_all(
    model: ChatModel,
    asked: Sequence[Match],
    prompts: Sequence[Mapping[str, Any]],
    path: Path,
    names: Sequence[str],
    concurrency: int,
) -> Judged:
    """Have those of a task's matches judged that FastChat's file has no usable row of yet.

    Args:
        prompts: the rows of FastChat's `judge_prompts.jsonl`.
        names: of the one or two models that answered.
    """
    with journal.alone(path), _fastchat(model) as (common, gen_judgment):
        is_pair = len(names) > 1
        make = gen_judgment.make_judge_pairwise if is_pair else gen_judgment.make_judge_single
        match_class = common.MatchPair if is_pair else common.MatchSingle
        play = common.play_a_match_pair if is_pair else common.play_a_match_single
        try:
            judges = make(_KNOWN_JUDGE, {row["name"]: dict(row) for row in prompts})
        except KeyError as error:
            raise DataError(f"judge_prompts.jsonl has no {error}; copy the file again") from error

        def judge_of(match: Match) -> Any:
            return judges[("math" if match.reference else "default") + "-mt" * (match.turn > 1)]

        def row_of(match: Match) -> dict[str, Any]:
            question_id, turn = match.key
            question = {"question_id": question_id, "turns": match.conversations[0].questions}
            answers = [{"choices": [{"turns": each.answers}]} for each in match.conversations]
            how = judge_of(match), match.reference, turn > 1
            for _ in range(_NUM_JUDGEMENTS):
                try:
                    row: dict[str, Any] = play(match_class(question, *names, *answers, *how), None)
                except SyntaxError:  # a rating such as 08 is no number to FastChat
                    continue
                except (IndexError, KeyError, TypeError, ValueError) as error:
                    reason = f"not FastChat's judge data ({error!r}); copy its files again"
                    raise DataError(reason) from error
                if _is_usable(row):
                    return row | {"judge": judge_names[match.key]}
            what = "verdict" if is_pair else "rating"
            raise NoReplyError(f"no {what} in {_NUM_JUDGEMENTS} judgements")

        by_key = {match.key: match for match in asked}
        judge_names = {
            key: [model.name, judge_of(match).prompt_template["name"]]
            for key, match in by_key.items()
        }
        rows, notes = _read(path, by_key, judge_names, names)
        # FastChat prints a line of each.
        with Path(devnull).open("w") as nowhere, redirect_stdout(nowhere):
            reasons = ask_missing(path, by_key, rows, row_of, concurrency, "Judging")
    return Judged(asked, rows, reasons, notes)


@contextmanager
def _fastchat(model: ChatModel) -> Iterator[tuple[Any, Any]]:
    """FastChat's modules, with `model` as their judge for the time being."""
    with needing("FastChat", "judging", "judge"):
        from fastchat.llm_judge import common, gen_judgment

    def complete(name: str, conversation: Any, **_: Any) -> str:
        system, user = conversation.to_openai_api_messages()
        return model.ask(system["content"], user["content"])

    with mock.patch.object(common, "chat_completion_openai", complete):
        yield common, gen_judgment


def _is_usable(row: Mapping[str, Any]) -> bool:
    if "score" in row:
        return is_rating(row["score"])  # FastChat writes -1 where there is none
    return {row["g1_winner"], row["g2_winner"]} <= {"model_1", "model_2", "tie"}


def _read(
    path: Path,
    by_key: Mapping[AnswerTurn, Match],
    judge_names: Mapping[AnswerTurn, list[str]],
    names: Sequence[str],
) -> tuple[dict[AnswerTurn, dict[str, Any]], list[str]]:
    """The usable rows of a file, and notes on lines that are none; an error for another answer."""
    rows: dict[AnswerTurn, dict[str, Any]] = {}
    notes: list[str] = []
    is_pair = len(names) > 1
    columns = ("model_1", "model_2") if is_pair else ("model",)
    prompt_column = "g1_user_prompt" if is_pair else "user_prompt"
    for number, line in journal.lines(path) if path.exists() else ():
        try:
            row = journal.parsed(line)
            key, prompt = (row["question_id"], row["turn"]), row[prompt_column]
            is_usable = _is_usable(row)
            is_ours = (
                key in by_key
                and row["judge"] == judge_names[key]
                and [row[column] for column in columns] == [*names]
                and all(text in prompt for text in by_key[key].texts())
            )
        except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
            reason = f"{type(error).__name__}: {error}"
            notes.append(f"{path}:{number}: skipped, not a judgement ({reason}); remove the line")
            continue
        if not is_ours:
            reason = "judges another answer than this run's; move the file away"
            raise DataError(f"{path}:{number}: {reason}")
        if is_usable:
            rows[key] = row
        else:
            notes.append(f"{path}:{number}: skipped, has no rating or verdict; remove the line")
    return rows, notes


def file_name(name: str) -> str:
    """A model's name without the characters that file names cannot have.

    >>> file_name("org/judge-1.5:free")
    'org__judge-1.5__free'
    """
    return re.sub(r"[^\w.+-]+", "__", name)
