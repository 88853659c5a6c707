"""Answered turns as a pandas DataFrame, a row per turn: what every figure and table is made of."""

from collections.abc import Iterable, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any, get_args

from pandas import DataFrame, Series

from copyspec_eval.records import TurnRecord
from copyspec_eval.reports.recorded import read_runs
from copyspec_eval.types import COPIED, DraftCounts, DraftSource, TurnCounts

_SOURCES: tuple[DraftSource, ...] = get_args(DraftSource)
_KEYS = ("run_id", "task", "doc_id", "turn", "repeat", "category", "rank", "backend")
_BASELINE_COLUMNS = ("num_tokens", "seconds", "decode_seconds", "latency_seconds", "decode_tokens")
_TEXTS = {*_KEYS, "drafter", "generation", "agreement", "finish_reason"}
_WHOLE = {"doc_id", "turn", "repeat", "rank", "batch_size", "num_turns"}

_EMPTY = TurnRecord("", "", 0, 1, 0, "", 0, "", None, 1, "", "", "", TurnCounts(), (), None, "", "")


def read_turns(folders: Iterable[Path]) -> DataFrame:
    """The turns of the runs in `folders`: `frame`, and a column `spec.NAME` per setting.

    >>> turns = read_turns([Path("runs/a"), Path("runs/b")])  # doctest: +SKIP
    >>> turns.groupby("spec.drafting.gamma")["num_tokens"].sum()  # doctest: +SKIP
    """
    runs = read_runs(folders)
    specs = {run_id: run.spec for read in runs for run_id, run in read.manifests.items()}
    records = [record for run in runs for record in run.records]
    known = [(specs.get(record.run_id), record.task) for record in records]
    settings = [spec.of_task(task).settings() if spec else {} for spec, task in known]
    by_turn = DataFrame(settings, dtype=object).add_prefix("spec.")
    return frame(records).join(by_turn.apply(_of_one_type).infer_objects())


def _of_one_type(setting: "Series[Any]") -> "Series[Any]":
    """A setting's values as parquet takes them: of one simple type, or as text."""
    values = setting.dropna()
    types = set(values.map(type))
    simple = len(types) < 2 and not types & {list, dict}
    return setting if simple else setting.where(setting.isna(), setting.map(str))


def frame(records: Sequence[TurnRecord]) -> DataFrame:
    """A row of `columns` per record; `conversation` is one number per document; NaN is unknown."""
    turns = DataFrame([columns(record) for record in records], columns=list(columns(_EMPTY)))
    types = {name: "float64" for name in turns.columns if name not in _TEXTS | _WHOLE}
    turns = turns.astype(types | {name: "int64" for name in _WHOLE})
    turns["conversation"] = turns.groupby(["task", "doc_id", "repeat"], sort=False).ngroup()
    return turns


def columns(record: TurnRecord) -> dict[str, Any]:
    """The row of a record; `ended` is 1 if the token budget cut neither it nor its baseline."""
    baseline = record.baseline
    difference = baseline.difference if baseline else None
    baseline_counts = counts_columns(baseline.counts if baseline else TurnCounts())
    row = {name: getattr(record, name) for name in _KEYS}
    row["drafter"] = record.drafter or record.backend
    row |= {"batch_size": record.batch_size, "generation": record.generation}
    row |= counts_columns(record.counts)
    row |= {f"baseline_{name}": baseline_counts[name] for name in _BASELINE_COLUMNS}
    reasons = {each.finish_reason for each in (record.counts, baseline and baseline.counts) if each}
    row["ended"] = 1.0 if reasons <= {"eos", "stop"} else None
    row["agreement"] = baseline.agreement if baseline else ""
    for name in ("identical", "near_tie", "diverged"):
        row[name] = float(baseline.agreement == name) if baseline else None
    row["difference_position"] = difference.position if difference else None
    row["margin"] = difference.margin if difference else None
    row["noise"] = difference.noise if difference else None
    return row


def counts_columns(counts: TurnCounts) -> dict[str, Any]:
    """The counts of a turn, flat, and sums; those of copies are unknown where a source is."""
    flat = {field.name: getattr(counts, field.name) for field in fields(TurnCounts)}
    drafts = flat.pop("drafts")
    flat["finish_reason"] = counts.finish_reason or ""
    for source in _SOURCES:
        in_source = None if drafts is None else drafts.get(source, DraftCounts())
        for name in ("attempts", "drafted", "accepted"):
            flat[f"{source}_{name}"] = in_source and getattr(in_source, f"num_{name}")
    given, tokens = counts.num_prefill_tokens, counts.num_tokens
    flat["decode_tokens"] = None if given is None or tokens is None else tokens - given
    flat["num_turns"] = 1
    flat["cut"] = float(counts.finish_reason == "length") if counts.finish_reason else None
    flat |= dict.fromkeys(("copied_tokens", "copy_attempts", "drafted_tokens"))
    if drafts is not None:
        if "unknown" not in drafts:
            flat["copied_tokens"] = sum(flat[f"{source}_accepted"] for source in COPIED)
            flat["copy_attempts"] = sum(flat[f"{source}_attempts"] for source in COPIED)
        flat["drafted_tokens"] = sum(flat[f"{source}_drafted"] for source in _SOURCES)
    return flat
