"""Turns' records and a run's spec, complete and consistent, to change for a test."""

from dataclasses import replace
from typing import Any

from copyspec_eval.manifest import RunSpec
from copyspec_eval.records import BaselineTurn, TurnRecord
from copyspec_eval.types import Attempt, Difference, DraftCounts, Span, TurnCounts

COUNTS = TurnCounts(
    num_prompt_tokens=7,
    num_tokens=10,
    num_forwards=5,
    num_prefill_tokens=1,
    drafts={"context": DraftCounts(num_attempts=2, num_drafted=20, num_accepted=5)},
    seconds=5.0,
    prefill_seconds=1.0,
    decode_seconds=4.0,
    latency_seconds=5.0,
    finish_reason="eos",
)

ROW = TurnRecord(
    run_id="r",
    task="mt_bench",
    doc_id=3,
    turn=1,
    repeat=0,
    category="math",
    rank=0,
    backend="copyspec",
    drafter="copyspec",
    batch_size=1,
    generation="do_sample=False",
    prompt="Q",
    prompt_sha256="0" * 64,
    counts=COUNTS,
    attempts=(Attempt(10, 3), Attempt(10, 2)),
    token_ids=tuple(range(10)),
    text='said "ü"\n\u2028<script>',
    answer='said "ü"\n\u2028<script>',
    spans=(Span(1, 3, 0), Span(5, 2, 4)),
)

PAIRED_ROW = replace(
    ROW,
    baseline=BaselineTurn(
        counts=replace(COUNTS, drafts={}, seconds=10.0, decode_seconds=9.0, latency_seconds=10.0),
        token_ids=(*range(9), 11),
        difference=Difference(9, 9, 11, margin=0.015, noise=0.01),
    ),
)

SPEC = RunSpec(
    backend="copyspec",
    model="M",
    model_args={"max_length": 2048, "peft": None},
    drafting={"drafter": "copyspec", "gamma": 3, "store": False, "exact": True, "paired": True},
    batch_size=1,
    device="cpu",
    dtype="bfloat16",
    weights="abc",
    quantization=None,
    ranks=1,
    threads=2,
    hardware={"processor": "P", "accelerators": []},
    environment={},
    versions={"python": "3.11", "torch": "2.13"},
    code="c0ffee",
    evaluation={"limit": None, "torch_random_seed": 1234, "gen_kwargs": {}},
    tasks={"mt_bench": {"version": 1}},
)


def with_counts(row: TurnRecord, **changes: Any) -> TurnRecord:
    return replace(row, counts=replace(row.counts, **changes))


def with_baseline(row: TurnRecord, **changes: Any) -> TurnRecord:
    assert row.baseline is not None
    counts = replace(row.baseline.counts, **changes)
    return replace(row, baseline=replace(row.baseline, counts=counts))
