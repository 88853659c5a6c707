"""Ratings of answers by a judge model."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from copyspec_eval import journal
from copyspec_eval.errors import DataError
from copyspec_eval.scoring.chat import ChatModel, UnansweredError, ask_missing
from copyspec_eval.scoring.mt_bench import Grading, is_rating, parse_rating

# Servers are not deterministic even at temperature 0, so another judgement may have a rating.
NUM_JUDGEMENTS = 3
WAIT_SECONDS = 1.0

AnswerTurn = tuple[int, int]
"""A question_id, and a turn counted from 1."""


class Judged(NamedTuple):
    """The ratings of one task's answers, from this run or an earlier one.

    Each answer has a score, or a reason why it has none; each skipped line of the judgement file
    has a note.
    """

    gradings: Sequence[Grading]
    scores: dict[AnswerTurn, float]
    reasons: dict[AnswerTurn, str]
    notes: list[str]


class Judge(ChatModel):
    """A chat model that rates answers."""

    def rate(self, grading: Grading) -> tuple[str, float]:
        """The judgement, and the rating in it.

        Raises:
            UnansweredError: all retries failed, or no judgement has a rating.
        """
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
    """Rate those of a task's `gradings` that `path` has no rating of yet; see `ask_missing`.

    `path` is FastChat's `model_judgment/<judge>_single.jsonl`, `rate` as `Judge.rate`.

    Raises:
        OptionError: `concurrency` is below 1.
        DataError: as `read_scores`, or `path` cannot be written, or another judge is writing it.
    """

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
        questions = {(each.question_id, each.turn): each for each in gradings}
        reasons = ask_missing(path, questions, rows, judgement_row, concurrency, "Judging")
    scores = {key: row["score"] for key, row in rows.items()}
    return Judged(gradings, scores, reasons, notes)


def read_scores(
    path: Path, gradings: Sequence[Grading], model: str, judge: str
) -> tuple[dict[AnswerTurn, float], list[str]]:
    """Ratings in a judgement file, and a note on each line that is skipped as no judgement.

    Raises:
        DataError: the file cannot be read, or judges an answer that is not in `gradings`: means
            that FastChat computes from it would not be this run's.
    """
    expected = {
        (each.question_id, each.turn): (model, [judge, each.template], each.user)
        for each in gradings
    }
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
            raise DataError(
                f"{path}:{number}: judges another answer than this run's; move the file away"
            )
        if is_rating(score):
            scores[answer] = score
        elif score != -1:  # FastChat's mark of no rating
            notes.append(f"{path}:{number}: skipped, {score} is no rating; remove the line")
    return scores, notes
