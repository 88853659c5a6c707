"""Pairwise judging, in both orders, by FastChat's own code: which of two answers is better.

Only the request goes through `chat`: FastChat's client needs openai < 1 and a list of judges.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stdout
from os import devnull
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

from copyspec_eval import journal
from copyspec_eval.errors import DataError, OptionError
from copyspec_eval.scoring.chat import ChatModel, UnansweredError, ask_missing
from copyspec_eval.scoring.mt_bench import AnswerTurn, Conversation, Guide, reference_of

_KNOWN_JUDGE = "gpt-4"  # to FastChat; the judge's own name is put into the rows


class Pair(NamedTuple):
    """Two models' answers to one question; `turn` counts from 1."""

    a: Conversation
    b: Conversation
    turn: int
    reference: tuple[str, str] | None


class JudgedPairs(NamedTuple):
    """Of each pair of a task FastChat's row, with verdicts in both orders, or why it has none."""

    rows: dict[AnswerTurn, dict[str, Any]]
    reasons: dict[AnswerTurn, str]

    def verdicts(self, turn: int) -> Counter[str]:
        """How often `a` wins, `b` wins, or neither, on a turn; as FastChat counts them."""
        rows = [row for row in self.rows.values() if row["turn"] == turn]
        agreed = (row["g1_winner"] if row["g1_winner"] == row["g2_winner"] else "" for row in rows)
        return Counter({"model_1": "a", "model_2": "b"}.get(winner, "tie") for winner in agreed)


def pairs_of(
    task: str,
    a: Sequence[Conversation],
    b: Sequence[Conversation],
    guide: Guide,
    all_references: bool,
) -> list[Pair]:
    """Both turns of every question that two runs answered, with what the judge is shown."""
    others = {each.question_id: each for each in b}
    pairs = [
        Pair(each, others[each.question_id], turn, reference)
        for each in a
        if each.question_id in others and each.questions == others[each.question_id].questions
        for turn in (1, 2)
        for reference in [reference_of(task, each, turn, guide, all_references)]
    ]
    if not pairs:
        raise DataError(f"{task}: no question that both runs answered; give two runs of one task")
    return pairs


def judge_pairs(
    model: ChatModel,
    pairs: Sequence[Pair],
    prompts: Sequence[Mapping[str, Any]],
    path: Path,
    names: tuple[str, str],
    concurrency: int,
) -> JudgedPairs:
    """Judge those of a task's `pairs` of the models `names` that the file has no verdict of."""
    with journal.alone(path), _fastchat(model) as (common, gen_judgment):
        by_name = {row["name"]: dict(row) for row in prompts}
        judges = gen_judgment.make_judge_pairwise(_KNOWN_JUDGE, by_name)

        def verdict_row(pair: Pair) -> dict[str, Any]:
            kind = ("math" if pair.reference else "default") + ("-mt" if pair.turn == 2 else "")
            match = common.MatchPair(
                {"question_id": pair.a.question_id, "turns": list(pair.a.questions)},
                *names,
                _answers(pair.a.answers),
                _answers(pair.b.answers),
                judges[kind],
                ref_answer=_answers(pair.reference) if pair.reference else None,
                multi_turn=pair.turn == 2,
            )
            row: dict[str, Any] = common.play_a_match_pair(match, None)
            if "error" in (row["g1_winner"], row["g2_winner"]):
                raise UnansweredError("no verdict in a judgement")
            return row | {"judge": [model.name, judges[kind].prompt_template["name"]]}

        by_key = {(pair.a.question_id, pair.turn): pair for pair in pairs}
        rows = _read(path, by_key, names, model.name)
        # FastChat prints a line of each.
        with Path(devnull).open("w") as nowhere, redirect_stdout(nowhere):
            reasons = ask_missing(path, by_key, rows, verdict_row, concurrency, "Judging pairs")
    return JudgedPairs(rows, reasons)


@contextmanager
def _fastchat(model: ChatModel) -> Iterator[tuple[Any, Any]]:
    """FastChat's modules, with `model` as their judge meanwhile."""
    try:
        from fastchat.llm_judge import common, gen_judgment
    except ImportError as error:
        remedy = "pip install 'copyspec-eval[judge]'"
        raise OptionError(f"judging pairs needs FastChat ({error}); {remedy}") from error

    def complete(name: str, conversation: Any, **_: Any) -> str:
        system, user = conversation.to_openai_api_messages()
        return model.ask(system["content"], user["content"])

    with mock.patch.object(common, "chat_completion_openai", complete):
        yield common, gen_judgment


def _answers(turns: Sequence[str]) -> dict[str, Any]:
    """A row of FastChat's answer files, as far as a judge reads it."""
    return {"choices": [{"turns": list(turns)}]}


def _read(
    path: Path, by_key: Mapping[AnswerTurn, Pair], names: tuple[str, str], judge: str
) -> dict[AnswerTurn, dict[str, Any]]:
    """The verdicts in a file; torn lines are judged anew."""
    rows: dict[AnswerTurn, dict[str, Any]] = {}
    for number, line in journal.lines(path) if path.exists() else ():
        try:
            row = journal.parsed(line)
            key = row["question_id"], row["turn"]
            pair, prompt = by_key[key], row["g1_user_prompt"]
            texts = (pair.a.answers[pair.turn - 1], pair.b.answers[pair.turn - 1])
            same = (row["model_1"], row["model_2"], row["judge"][0]) == (*names, judge)
            is_ours = same and all(text in prompt for text in texts)
            winners = {row["g1_winner"], row["g2_winner"]}
        except ValueError:
            continue
        except (LookupError, TypeError) as error:
            reason = f"no verdict ({error!r}); move the file away"
            raise DataError(f"{path}:{number}: {reason}") from error
        if not is_ours or not winners <= {"model_1", "model_2", "tie"}:
            raise DataError(f"{path}:{number}: judges other answers than these; move the file away")
        rows[key] = row
    return rows
