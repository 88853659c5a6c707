"""A judge's ratings of a run, from the judgement files in its folder."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from copyspec_eval import journal
from copyspec_eval.errors import DataError
from copyspec_eval.reports.conversations import conversations
from copyspec_eval.reports.runs import read_run
from copyspec_eval.scoring.mt_bench import Conversation, is_rating

PREFIX = "rating_"
"""How the columns of a leaderboard begin that hold a judge's ratings; the judge's name follows."""


class Rating(NamedTuple):
    """A rating of one answer, from 1 to 10."""

    task: str
    judge: str
    category: str
    turn: int
    question_id: int
    score: float


def read_ratings(folder: Path, notes: list[str]) -> list[Rating]:
    """All ratings of a run; of an answer that was rated twice, the later one.

    Rows that do not rate this run's answers are left out, with a line in `notes` for each file.
    """
    files = sorted(folder.glob("fastchat/*/model_judgment/*_single*.jsonl"))
    if not files:
        return []
    try:
        by_task = conversations(read_run(folder))
    except DataError as error:
        notes.append(f"{folder}: its ratings are left out ({error})")
        return []
    ratings: dict[tuple[Path, int, int], Rating] = {}
    for file in files:
        task, judge = file.parent.parent.name, file.stem.replace("_single", "", 1)
        by_question = {each.question_id: each for each in by_task.get(task, ())}
        others = 0
        for _, line in journal.lines(file):
            rating = _rating(line, by_question, task, judge)
            if rating is None:
                others += 1
            else:
                ratings[file, rating.question_id, rating.turn] = rating
        if others:
            notes.append(f"{file}: no ratings of this run's answers, left out: {others} rows")
    return list(ratings.values())


def _rating(
    line: bytes, conversations: dict[int, Conversation], task: str, judge: str
) -> Rating | None:
    """The rating in a row of FastChat's; None if it is not one, or rates another answer."""
    try:
        row = journal.parsed(line)
        conversation = conversations[row["question_id"]]
        turn, score = int(row["turn"]), float(row["score"])
        # The judge was shown the answer, so the text that it was asked has it.
        is_ours = conversation.answers[turn - 1] in row["user_prompt"]
    except (ArithmeticError, LookupError, TypeError, ValueError):
        return None
    if not (is_ours and turn >= 1 and is_rating(score)):
        return None
    return Rating(task, judge, conversation.category, turn, conversation.question_id, score)
