"""Answers of earlier runs, from their records or from traces: what `store=PATH` copies from."""

from __future__ import annotations

import hashlib
import os
from array import array
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from copyspec_eval import records
from copyspec_eval.drafters.registry import store_text
from copyspec_eval.errors import OptionError
from copyspec_eval.records import TurnRecord
from copyspec_eval.reports.traces import read_traces
from copyspec_eval.sources import read_jsonl

TokenIds = Sequence[int]

_BEYOND = 2**31
"""No tokenizer has as many tokens."""


class Asked(NamedTuple):
    """Which request: `task` is "" where it is not known, `document` the document's number or id."""

    task: str
    document: str
    turn: int


@dataclass(frozen=True, slots=True)
class EarlierAnswer:
    """An answer as an earlier run left it.

    Attributes:
        token_ids: None where the backend reported none.
        text: the answer as handed to lm-eval; None for a trace.
        whole_text: of `token_ids`, special tokens included; None for a trace.
    """

    asked: Asked
    token_ids: TokenIds | None
    text: str | None = None
    whole_text: str | None = None
    has_eos: bool = False


class EarlierAnswers:
    """Token ids of earlier answers, by what was asked.

    Attributes:
        in_order: all answers, the latest last.
        digest: of all answers and what was asked; twelve hexadecimal digits.

    >>> earlier = EarlierAnswers([(Asked("mt_bench", "7", 2), [5, 6]), (Asked("", "7", 2), [8])])
    >>> [list(answer) for answer in earlier.to("mt_bench", 7, 2)], earlier.to("mt_bench", 7, 1)
    ([[8], [5, 6]], ())
    """

    def __init__(self, answers: Iterable[tuple[Asked, TokenIds]] = ()) -> None:
        self.in_order: list[TokenIds] = []
        self._by_request: dict[Asked, list[TokenIds]] = {}
        digest = hashlib.sha256()
        for asked, token_ids in answers:
            # Objects of their own would take ten times the memory.
            compact = array("i", token_ids)
            self.in_order.append(compact)
            self._by_request.setdefault(asked, []).append(compact)
            digest.update(f"{asked!r}{compact.tolist()}".encode())
        self.digest = digest.hexdigest()[:12]

    def to(self, task: str, document: int | str | None, turn: int) -> tuple[TokenIds, ...]:
        """The answers to a request, the latest last; none where the document has no number."""
        if document is None:
            return ()
        asked = Asked(task, str(document), turn)
        tasks = dict.fromkeys(("", task))
        return tuple(
            ids for name in tasks for ids in self._by_request.get(asked._replace(task=name), ())
        )


def read_earlier(paths: Sequence[str], notes: list[str]) -> list[EarlierAnswer]:
    """The answers in `paths`: folders of runs, files of their rows, or files of traces.

    Later paths have the later answers. `notes` gets a line about rows that cannot be read.

    Raises:
        OptionError: there is no such file or folder, or no answer in it.
        DataError: a file cannot be read.
    """
    answers: list[EarlierAnswer] = []
    for path in paths:
        try:
            in_path = _answers_in(Path(path), notes)
        except OSError as error:
            raise OptionError(
                f"store={path}: {error.strerror}; name the --output_path of an earlier run"
            ) from error
        if not in_path:
            raise OptionError(f"store={path}: no answers there; name a run that has some")
        answers += in_path
    return answers


def earlier_for_replay(paths: Sequence[str], replayed: Path, notes: list[str]) -> EarlierAnswers:
    """The answers in `paths` for a replay of a file of traces, whose documents have no task.

    Raises:
        OptionError: as `read_earlier`; it is the same file; an answer has no token ids; none has
            the id and turn of a trace.
        DataError: as `read_earlier` and `read_traces`.
    """
    for path in paths:
        if os.path.realpath(path) == os.path.realpath(replayed):
            raise OptionError(f"store={path} is what is replayed; name answers of another run")
    answers, store = read_earlier(paths, notes), f"store={store_text(paths)}"
    if any(answer.token_ids is None for answer in answers):
        raise OptionError(
            f"{store}: answers without token ids; a replay has no tokenizer, so name a run of "
            "--model copyspec"
        )
    earlier = EarlierAnswers(
        (answer.asked._replace(task=""), answer.token_ids or ()) for answer in answers
    )
    if not any([earlier.to("", trace.id, trace.turn) for trace in read_traces(replayed)]):
        raise OptionError(
            f"{store}: no answer has the id and turn of a trace; name answers to the same documents"
        )
    return earlier


def _answers_in(path: Path, notes: list[str]) -> list[EarlierAnswer]:
    if path.is_dir():
        files = sorted(path.glob("turns*.jsonl"))
        if not files:
            raise OptionError(
                f"store={path}: no turns*.jsonl there; name the --output_path of a run of "
                "--model copyspec or copyspec-timed"
            )
        return _answers_in_records(files, notes)
    if not path.exists():
        raise OptionError(
            f"store={path}: no such file or folder; pass true, false, or the --output_path of an "
            "earlier run"
        )
    if "answer_ids" not in next(read_jsonl(path)).fields:
        return _answers_in_records([path], notes)
    return [
        EarlierAnswer(Asked("", str(trace.id), trace.turn), trace.answer_ids)
        for trace in read_traces(path)
        if trace.id is not None
    ]


def _answers_in_records(files: Iterable[Path], notes: list[str]) -> list[EarlierAnswer]:
    """The answers of several files, in the order of their runs."""
    by_run: dict[str, list[EarlierAnswer]] = {}
    for file in files:
        for row in records.read(file, notes):
            by_run.setdefault(row.run_id, []).append(_recorded_answer(row))
    return [answer for run_id in sorted(by_run) for answer in by_run[run_id]]


def _recorded_answer(row: TurnRecord) -> EarlierAnswer:
    asked = Asked(row.task, str(row.doc_id), row.turn)
    has_eos = row.counts.finish_reason == "eos"
    ids = row.token_ids
    if ids is not None and not all(0 <= token < _BEYOND for token in ids):
        ids = None  # they are no one's
    compact = None if ids is None else array("i", ids)
    return EarlierAnswer(asked, compact, row.text, row.answer, has_eos)
