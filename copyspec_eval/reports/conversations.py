"""The conversations of a run that a judge can rate, and the ratings in its folder."""

from pathlib import Path
from typing import Annotated, Any

import msgspec

from copyspec_eval import journal
from copyspec_eval.errors import DataError
from copyspec_eval.reports.results import Rating
from copyspec_eval.reports.runs import Answer, Run, read_run
from copyspec_eval.scoring.judging import REFERENCE_TURNS, Conversation, is_rating

PREFIX = "rating_"
"""Prefix of a leaderboard's columns that hold a judge's ratings; the judge's name follows."""

_TWO_TURNS: Any = Annotated[list[str], msgspec.Meta(min_length=2)]


def conversations(run: Run) -> dict[str, list[Conversation]]:
    """The conversations that a judge can score, by task: those of FastChat's question files."""
    by_task: dict[str, list[Conversation]] = {}
    for key, first in run.answers.items():
        doc = first.doc or {}
        turns = doc.get("turns")
        has_turns = "question_id" in doc and isinstance(turns, list) and len(turns) > 1
        if (key.turn, key.repeat) != (1, 0) or not (has_turns or key.task in REFERENCE_TURNS):
            continue
        if (second := run.answers.get(key._replace(turn=2))) is None:
            missing = f"{key.task} doc {key.doc_id}: the second answer is missing"
            raise DataError(f"{missing}; run again")
        types = {"question_id": int, "category": str, "turns": _TWO_TURNS}
        identity, category, (question, again, *_) = document_fields(first, **types)
        texts = (question, again), (first.text, second.text)
        by_task.setdefault(key.task, []).append(Conversation(identity, category, *texts))
    if not by_task:
        wanted = "mt_bench, mt_redundant or a question file"
        raise DataError(f"{run.folder}: no answers to {wanted}; run one")
    return by_task


def document_fields(answer: Answer, **types: Any) -> list[Any]:
    """Fields of the answer's document, converted to these types."""
    doc, values = answer.doc or {}, []
    # What is missing is named before what is of another type.
    for name in sorted(types, key=lambda name: name in doc):
        where = f"{answer.key.task} doc {answer.key.doc_id}: its {name}"
        if name not in doc:
            raise DataError(f"{where} is not recorded; run lm_eval with --log_samples")
        try:
            values.append(msgspec.convert(doc[name], types[name], strict=False))
        except msgspec.ValidationError as error:
            reason = f"is not that of a document ({error})"
            raise DataError(f"{where} {reason}; run lm_eval again") from error
    return values


def read_ratings(folder: Path, notes: list[str]) -> list[Rating]:
    """Of each answer of a run the latest rating; a note on each file with rows of other answers."""
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
        rows = [_rating(line, by_question, task, judge) for _, line in journal.lines(file)]
        ratings |= {(file, row.question_id, row.turn): row for row in rows if row}
        if others := rows.count(None):
            notes.append(f"{file}: no ratings of this run's answers, left out: {others} rows")
    return list(ratings.values())


def _rating(line: bytes, asked: dict[int, Conversation], task: str, judge: str) -> Rating | None:
    """The rating in a row of FastChat's; None if it is not one, or rates another answer."""
    try:
        row = journal.parsed(line)
        conversation = asked[row["question_id"]]
        turn, score = int(row["turn"]), float(row["score"])
        # The judge was shown the answer, so the text that it was asked has it.
        is_ours = conversation.answers[turn - 1] in row["user_prompt"]
    except (ArithmeticError, LookupError, TypeError, ValueError):
        return None
    rating = Rating(task, judge, conversation.category, turn, conversation.question_id, score)
    return rating if is_ours and turn >= 1 and is_rating(score) else None
