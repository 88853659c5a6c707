"""Variants of question files, whose second questions ask for the first answer with a change."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from copyspec_eval import journal
from copyspec_eval.errors import DataError
from copyspec_eval.openai_api import NoReplyError
from copyspec_eval.scoring.chat import ChatModel, ask_missing
from copyspec_eval.sources import Question, read_questions

_SYSTEM = "You write the user's part of conversations that a language model is tested with."
_INSTRUCTION = """\
This is the first thing that a user asks an assistant. It is of the category "{category}".

{question}

Write what the user asks next: to be given the whole answer again with one change, so that most of \
its text stays as it is. Choose a change that fits, such as another name, number, place, order, \
format, tone or an additional sentence. The request has to make sense whatever the answer was, and \
must not repeat the first question. Reply with the request alone, one or two sentences of it."""


def write_redundant(
    model: ChatModel, questions: Sequence[Question], path: Path, concurrency: int
) -> dict[int, str]:
    """Append the rows that `path` lacks, and sort them once complete; reasons for missing ones."""

    def redundant_row(question: Question) -> dict[str, Any]:
        category, first = question["category"], question["turns"][0]
        instruction = _INSTRUCTION.format(category=category, question=first)
        request = model.ask(_SYSTEM, instruction).strip().strip('"').strip()
        if not request:
            raise NoReplyError("an empty answer")
        number = question["question_id"]
        return {"question_id": number, "category": category, "turns": [first, request]}

    by_id = {question["question_id"]: question for question in questions}
    with journal.alone(path):
        written = read_questions(path) if path.exists() and path.stat().st_size else []
        rows: dict[int, dict[str, Any]] = {row["question_id"]: dict(row) for row in written}
        for number, row in rows.items():
            if number not in by_id or by_id[number]["turns"][0] != row["turns"][0]:
                raise DataError(f"{path}: question {number} is of another file; give another --out")
        reasons = ask_missing(path, by_id, rows, redundant_row, concurrency, "Asking")
        if not reasons:
            lines = (json.dumps(rows[number], ensure_ascii=False) + "\n" for number in by_id)
            journal.replace(path, "".join(lines))
    return reasons
