"""Turns' records, complete and consistent, to change for a test."""

from __future__ import annotations

from dataclasses import replace

from copyspec_eval.records import BaselineTurn, TurnRecord
from copyspec_eval.types import Difference

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
    store=False,
    tree=False,
    draft_model=None,
    exact=True,
    batch_size=1,
    prompt_sha256="0" * 64,
    num_prompt_tokens=7,
    num_tokens=10,
    num_forwards=5,
    num_prefill_tokens=1,
    num_attempts=2,
    num_drafted=20,
    num_accepted=5,
    num_copied=5,
    seconds=5.0,
    prefill_seconds=1.0,
    decode_seconds=4.0,
    latency_seconds=5.0,
    finish_reason="eos",
    attempts=((10, 3, "context"), (10, 2, "context")),
    spans=((1, 3, 0), (5, 2, 4)),
    token_ids=tuple(range(10)),
    text='said "ü"\n\u2028<script>',
)

PAIRED_ROW = replace(
    ROW,
    baseline=BaselineTurn(
        num_tokens=10,
        seconds=10.0,
        prefill_seconds=1.0,
        decode_seconds=9.0,
        latency_seconds=10.0,
        finish_reason="eos",
        token_ids=(*range(9), 11),
        agreement="near_tie",
        difference=Difference(9, 9, 11, margin=0.015, noise=0.01),
    ),
)
