"""Answers of earlier runs, from their records or from traces: what `store=PATH` copies from."""

import hashlib
import os
from array import array
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, NamedTuple

import msgspec

from copyspec_eval import records
from copyspec_eval.drafters.registry import store_text
from copyspec_eval.errors import DataError, OptionError
from copyspec_eval.records import TurnRecord
from copyspec_eval.sources import read_jsonl

TokenIds = Sequence[int]

_BEYOND = 2**31  # no tokenizer has as many tokens
_MOST_TOKENS = 2**20  # of a prompt or an answer; a drafter reads them in seconds
_TokenId = Annotated[int, msgspec.Meta(ge=0, lt=_BEYOND)]


@dataclass(frozen=True, slots=True)
class Trace:
    """A prompt and its answer, as token ids; `id`, of the document, is the same in all runs."""

    category: str
    turn: Annotated[int, msgspec.Meta(ge=1, lt=2**31)]
    prompt_ids: Annotated[tuple[_TokenId, ...], msgspec.Meta(max_length=_MOST_TOKENS)]
    answer_ids: Annotated[tuple[_TokenId, ...], msgspec.Meta(min_length=1, max_length=_MOST_TOKENS)]
    id: int | str | None = None


class RequestId(NamedTuple):
    """A turn of a document; `task` is "" where it is not known."""

    task: str
    document: str
    turn: int


@dataclass(frozen=True, slots=True)
class EarlierAnswer:
    """An answer as an earlier run left it; what its backend did not report is None."""

    request: RequestId
    token_ids: TokenIds | None
    text: str | None = None
    whole_text: str | None = None
    has_eos: bool = False


class EarlierAnswers:
    """Token ids of earlier answers, by what was asked; the latest last.

    >>> second, unnamed = RequestId("mt_bench", "7", 2), RequestId("", "7", 2)
    >>> earlier = EarlierAnswers([(second, [5, 6]), (unnamed, [8])])
    >>> [list(answer) for answer in earlier.to("mt_bench", 7, 2)], earlier.to("mt_bench", 7, 1)
    ([[8], [5, 6]], ())
    """

    def __init__(self, answers: Iterable[tuple[RequestId, TokenIds]] = ()) -> None:
        self.in_order: list[TokenIds] = []
        self._by_request: dict[RequestId, list[TokenIds]] = {}
        digest = hashlib.sha256()
        for request, token_ids in answers:
            # Objects of their own would take ten times the memory.
            compact = array("i", token_ids)
            self.in_order.append(compact)
            self._by_request.setdefault(request, []).append(compact)
            digest.update(f"{tuple(request)}{compact.tolist()}".encode())
        self.digest = digest.hexdigest()[:12]

    def to(self, task: str, document: int | str | None, turn: int) -> tuple[TokenIds, ...]:
        """The answers to a request, the latest last; none where the document has no number."""
        if document is None:
            return ()
        request = RequestId(task, str(document), turn)
        requests = dict.fromkeys((request._replace(task=""), request))
        return tuple(ids for each in requests for ids in self._by_request.get(each, ()))


def read_traces(path: Path) -> Iterator[Trace]:
    """The rows of a JSONL file: `category, turn, prompt_ids, answer_ids`, and `id` in some."""
    for where, fields in read_jsonl(path):
        try:
            yield msgspec.convert(fields, Trace)
        except msgspec.ValidationError as error:
            remedy = "give category, turn, prompt_ids, answer_ids"
            raise DataError(f"{where}: not a trace ({error}); {remedy}") from error


def read_earlier(paths: Sequence[str], notes: list[str]) -> list[EarlierAnswer]:
    """The answers in folders of runs, files of their rows, or files of traces, in this order."""
    answers: list[EarlierAnswer] = []
    for path in paths:
        try:
            in_path = _answers_in(Path(path), notes)
        except OSError as error:
            remedy = "name the --output_path of an earlier run"
            raise OptionError(f"store={path}: {error.strerror}; {remedy}") from error
        if not in_path:
            raise OptionError(f"store={path}: no answers there; name a run that has some")
        answers += in_path
    return answers


def earlier_for_replay(paths: Sequence[str], replayed: Path, notes: list[str]) -> EarlierAnswers:
    """The answers in `paths` for a replay of a file of traces, whose documents have no task."""
    for path in paths:
        if os.path.realpath(path) == os.path.realpath(replayed):
            raise OptionError(f"store={path} is being replayed; name answers of another run")
    answers, store = read_earlier(paths, notes), f"store={store_text(paths)}"
    if any(answer.token_ids is None for answer in answers):
        remedy = "a replay has no tokenizer, so name a run of --model copyspec"
        raise OptionError(f"{store}: answers without token ids; {remedy}")
    by_request = ((each.request._replace(task=""), each.token_ids or ()) for each in answers)
    earlier = EarlierAnswers(by_request)
    if not any([earlier.to("", trace.id, trace.turn) for trace in read_traces(replayed)]):
        remedy = "name answers to the same documents"
        raise OptionError(f"{store}: no answer has the id and turn of a trace; {remedy}")
    return earlier


def _answers_in(path: Path, notes: list[str]) -> list[EarlierAnswer]:
    if path.is_dir():
        if path not in records.folders_with_rows(path):
            remedy = "name the --output_path of a run of --model copyspec or copyspec-timed"
            raise OptionError(f"store={path}: no turns*.jsonl there; {remedy}")
        return list(map(_from_record, records.read_folder(path, notes)))
    if not path.exists():
        remedy = "pass true, false, or the --output_path of an earlier run"
        raise OptionError(f"store={path}: no such file or folder; {remedy}")
    if "answer_ids" not in next(read_jsonl(path)).fields:
        rows = sorted(records.read(path, notes), key=lambda row: row.run_id)
        return list(map(_from_record, rows))
    traces = [trace for trace in read_traces(path) if trace.id is not None]
    return [EarlierAnswer(RequestId("", str(t.id), t.turn), t.answer_ids) for t in traces]


def _from_record(row: TurnRecord) -> EarlierAnswer:
    request, ids = RequestId(row.task, str(row.doc_id), row.turn), row.token_ids
    are_possible = ids is not None and all(0 <= token < _BEYOND for token in ids)
    compact = array("i", ids or ()) if are_possible else None
    has_eos = row.counts.finish_reason == "eos"
    return EarlierAnswer(request, compact, row.text, row.answer, has_eos)
