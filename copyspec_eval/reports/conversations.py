"""The conversations of a run that a judge can rate, from its sample logs."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec

from copyspec_eval.errors import DataError
from copyspec_eval.reports.runs import Answer, Run
from copyspec_eval.scoring.mt_bench import REFERENCE_TURNS, Conversation


def conversations(run: Run) -> dict[str, list[Conversation]]:
    """The conversations that a judge can score, by task: those of FastChat's question files.

    Raises:
        DataError: there are none, or one has no answer or no document.
    """
    by_task: dict[str, list[Conversation]] = {}
    for answer in run.answers.values():
        if answer.turn == 1 and answer.repeat == 0 and _has_questions(answer):
            second = run.answers.get(answer.key._replace(turn=2))
            by_task.setdefault(answer.task, []).append(_conversation(answer, second))
    if not by_task:
        raise DataError(
            f"{run.folder}: no answers to mt_bench, mt_redundant or a question file; run one"
        )
    return by_task


def _has_questions(answer: Answer) -> bool:
    doc = answer.doc or {}
    turns = doc.get("turns")
    has_turns = "question_id" in doc and isinstance(turns, list) and len(turns) > 1
    return has_turns or answer.task in REFERENCE_TURNS


def _conversation(first: Answer, second: Answer | None) -> Conversation:
    if second is None:
        raise DataError(f"{first.task} doc {first.doc_id}: the second answer is missing; run again")
    identity, category, (question, again, *_) = fields_of(
        first, question_id=int, category=str, turns=Annotated[list[str], msgspec.Meta(min_length=2)]
    )
    return Conversation(identity, category, (question, again), (first.text, second.text))


def fields_of(answer: Answer, **types: Any) -> list[Any]:
    """Fields of the answer's document, of these types."""
    doc, where = answer.doc or {}, f"{answer.task} doc {answer.doc_id}"
    missing = next((name for name in types if name not in doc), None)
    if missing:
        raise DataError(f"{where}: its {missing} is not recorded; run lm_eval with --log_samples")
    values = []
    for name, kind in types.items():
        try:
            values.append(msgspec.convert(doc[name], kind, strict=False))
        except msgspec.ValidationError as error:
            raise DataError(
                f"{where}: its {name} is not that of a document ({error}); run lm_eval again"
            ) from error
    return values
