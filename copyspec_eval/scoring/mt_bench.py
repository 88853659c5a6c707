"""MT-Bench's single-answer grading, with FastChat's prompts, ratings and files."""

import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from copyspec_eval import journal
from copyspec_eval.errors import DataError
from copyspec_eval.scoring.chat import ChatModel, UnansweredError, ask_missing

REFERENCE_TURNS = {"mt_bench": 2, "mt_redundant": 1, "mt_bench_paper": 2, "mt_redundant_paper": 1}
"""For how many turns of a task FastChat's reference answers hold; for none of another task.
Of MT-Redundant's second turns, which ask other things, FastChat itself would show them."""

# The judge is shown the reference answer, if there is one.
_REFERENCE_CATEGORIES = ("math", "reasoning", "coding")
_NAMES = ("single-v1", "single-math-v1", "single-v1-multi-turn", "single-math-v1-multi-turn")
_RATINGS = (re.compile(r"\[\[(\d+\.?\d*)\]\]"), re.compile(r"\[(\d+\.?\d*)\]"))

# Servers are not deterministic even at temperature 0, so another judgement may have a rating.
NUM_JUDGEMENTS = 3
WAIT_SECONDS = 1.0

AnswerTurn = tuple[int, int]  # a question_id, and a turn counted from 1


class Guide(NamedTuple):
    """FastChat's data for a judge."""

    templates: Mapping[str, tuple[str, str]]  # a system and a user prompt, by name
    references: Mapping[int, tuple[str, str]]  # the right answers, by question_id


@dataclass(frozen=True, slots=True)
class Conversation:
    """A user's two questions and a model's answers."""

    question_id: int
    category: str
    questions: tuple[str, str]
    answers: tuple[str, str]


@dataclass(frozen=True, slots=True)
class Grading:
    """One answer to judge; `system` and `user` are the messages that the judge gets."""

    question_id: int
    category: str
    turn: int
    template: str
    system: str
    user: str

    @property
    def key(self) -> AnswerTurn:
        return self.question_id, self.turn


class Judged(NamedTuple):
    """The ratings of one task's answers, from this run or an earlier one."""

    gradings: Sequence[Grading]
    scores: dict[AnswerTurn, float]
    reasons: dict[AnswerTurn, str]  # why the others have none
    notes: list[str]  # on each line that was skipped in the judgement file


def guide(prompts: Iterable[Mapping[str, Any]], references: Iterable[Mapping[str, Any]]) -> Guide:
    """A guide from the rows of `judge_prompts.jsonl` and of FastChat's reference answers."""
    try:
        templates = {row["name"]: (row["system_prompt"], row["prompt_template"]) for row in prompts}
        answers = {
            row["question_id"]: (str(first), str(second))
            for row in references
            for first, second in [row["choices"][0]["turns"]]
        }
    except (IndexError, KeyError, TypeError, ValueError) as error:
        raise DataError(f"not FastChat's judge data ({error!r}); copy its files again") from error
    for name in _NAMES:
        if name not in templates:
            raise DataError(f"judge_prompts.jsonl has no prompt {name!r}; copy the file again")
    return Guide(templates, answers)


def reference_of(
    task: str, conversation: Conversation, turn: int, guide: Guide, all_references: bool
) -> tuple[str, str] | None:
    """The answers that the judge of a turn is shown, if any; with `all_references` as FastChat."""
    num_turns = REFERENCE_TURNS.get(task, 0)
    if all_references and num_turns:
        num_turns = 2
    if conversation.category not in _REFERENCE_CATEGORIES or turn > num_turns:
        return None
    return guide.references.get(conversation.question_id)


def gradings(
    task: str, conversation: Conversation, guide: Guide, all_references: bool = False
) -> Iterator[Grading]:
    """The grading of each turn of a conversation of `task`."""
    questions, answers = conversation.questions, conversation.answers
    # Each of FastChat's prompts uses some of these fields.
    values = {"question": questions[0], "question_1": questions[0], "question_2": questions[1]}
    values |= {"answer": answers[0], "answer_1": answers[0], "answer_2": answers[1]}
    for turn in (1, 2):
        shown = reference_of(task, conversation, turn, guide, all_references)
        name = f"single-{'math-' if shown else ''}v1{'-multi-turn' if turn == 2 else ''}"
        system, template = guide.templates[name]
        try:
            references = dict(zip(("ref_answer_1", "ref_answer_2"), shown or (), strict=False))
            user = template.format(**values, **references)
        except (IndexError, KeyError, ValueError) as error:
            reason = f"has an unknown field ({error}); copy the file again"
            raise DataError(f"the judge's prompt {name!r} {reason}") from error
        yield Grading(conversation.question_id, conversation.category, turn, name, system, user)


def parse_rating(judgement: str) -> float | None:
    """The rating from 1 to 10 as FastChat has it: the first in double brackets, else in single.

    >>> parse_rating("See [1]. Rating: [[8.5]]"), parse_rating("Rating: [7]"), parse_rating("9")
    (8.5, 7.0, None)
    >>> parse_rating("Rating: [[11]]")
    """
    matches = (pattern.search(judgement) for pattern in _RATINGS)
    match = next(filter(None, matches), None)
    return float(match[1]) if match and is_rating(float(match[1])) else None


def is_rating(score: float) -> bool:
    """Whether the judge's scale has it."""
    return 1 <= score <= 10


class Judge(ChatModel):
    """A chat model that rates answers."""

    def rate(self, grading: Grading) -> tuple[str, float]:
        """The judgement, and the rating in it; `UnansweredError` if none of several has one."""
        for attempt in range(NUM_JUDGEMENTS):
            if attempt:
                time.sleep(WAIT_SECONDS * 2 ** (attempt - 1))
            judgement = self.ask(grading.system, grading.user)
            rating = parse_rating(judgement)
            if rating is not None:
                return judgement, rating
        raise UnansweredError(f"no rating in {NUM_JUDGEMENTS} judgements")


def judge_all(
    rate: Callable[[Grading], tuple[str, float]],
    gradings: Sequence[Grading],
    path: Path,
    model: str,
    judge: str,
    concurrency: int,
) -> Judged:
    """Rate those of a task's `gradings` that FastChat's file has no rating of yet."""

    def judgement_row(grading: Grading) -> dict[str, Any]:
        judgement, score = rate(grading)
        return {
            "question_id": grading.question_id,
            "model": model,
            "judge": [judge, grading.template],
            "user_prompt": grading.user,
            "judgment": judgement,
            "score": score,
            "turn": grading.turn,
            "tstamp": time.time(),
        }

    with journal.alone(path):
        scores, notes = read_scores(path, gradings, model, judge)
        rows: dict[AnswerTurn, dict[str, Any]] = {key: {"score": scores[key]} for key in scores}
        questions = {each.key: each for each in gradings}
        reasons = ask_missing(path, questions, rows, judgement_row, concurrency, "Judging")
    scores = {key: row["score"] for key, row in rows.items()}
    return Judged(gradings, scores, reasons, notes)


def read_scores(
    path: Path, gradings: Sequence[Grading], model: str, judge: str
) -> tuple[dict[AnswerTurn, float], list[str]]:
    """Ratings, and notes on lines that are none; an error for a rating of another answer."""
    expected = {each.key: (model, [judge, each.template], each.user) for each in gradings}
    scores: dict[AnswerTurn, float] = {}
    notes: list[str] = []
    for number, content in journal.lines(path) if path.exists() else ():
        try:
            row = journal.parsed(content)
            answer = row["question_id"], row["turn"]
            is_ours = expected.get(answer) == (row["model"], row["judge"], row["user_prompt"])
            score = float(row["score"])
        except (ArithmeticError, KeyError, TypeError, ValueError) as error:
            reason = f"{type(error).__name__}: {error}"
            notes.append(f"{path}:{number}: skipped, not a judgement ({reason}); remove the line")
            continue
        if not is_ours:
            reason = "judges another answer than this run's; move the file away"
            raise DataError(f"{path}:{number}: {reason}")
        if is_rating(score):
            scores[answer] = score
        elif score != -1:  # FastChat's mark of no rating
            notes.append(f"{path}:{number}: skipped, {score} is no rating; remove the line")
    return scores, notes


def file_name(name: str) -> str:
    """A model's name without the characters that file names cannot have.

    >>> file_name("org/judge-1.5:free")
    'org__judge-1.5__free'
    """
    return re.sub(r"[^\w.+-]+", "__", name)
