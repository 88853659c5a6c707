"""Run folders as lm-eval and our models leave them, of made-up figures."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

from sample_rows import PAIRED_ROW

from copyspec_eval import records
from copyspec_eval.records import TurnRecord

HOSTILE = (
    "<script>window.hacked = 1</script></script><img src=x onerror='window.hacked=1'>"
    " \"quotes\" & 'more' \u2028 \U0001f680\U0001f469\u200d\U0001f680 \u05e9\u05dc\u05d5\u05dd "
    "\u202eabc\u202c <!-- </textarea> ${x}"
)


def manifest(run_id: str, **changes: Any) -> dict[str, Any]:
    made: dict[str, Any] = {
        "run_id": run_id,
        "started_at": "2026-01-02T03:04:05+00:00",
        "command": f"lm_eval --model copyspec --model_args pretrained=M  # {run_id}",
        "config": {"pretrained": "M", "dtype": "torch.bfloat16", "device": "cpu", "width": 16},
        "versions": {"python": "3.11", "torch": "2.13"},
        "hardware": {"processor": "P", "threads": 2, "accelerators": []},
        "schema_version": 1,
    }
    for name, value in changes.items():
        made[name] = made[name] | value if isinstance(value, dict) else value
    return made


def turn(run_id: str, doc: int, turn: int, seed: int = 0, **changes: Any) -> TurnRecord:
    """A turn that copied its second sentence."""
    source = random.Random(f"{seed} {doc} {turn}")
    plain = replace(
        PAIRED_ROW.baseline,  # type: ignore[type-var]
        seconds=2.0 + source.random(),
        decode_seconds=1.5 + source.random(),
        latency_seconds=2.0 + source.random(),
        agreement="identical",
        difference=None,
    )
    prompt = f"Say it again {doc}. It is so."
    row = replace(
        PAIRED_ROW,
        run_id=run_id,
        doc_id=doc,
        turn=turn,
        category=("math", "writing")[doc % 2],
        num_prompt_tokens=50 + 10 * doc,
        seconds=1.0 + source.random(),
        decode_seconds=0.5 + source.random(),
        text="I do: It is so.",
        prompt=prompt,
        segments=(("I do: ", -1, -1), ("It is so.", len(prompt) - 9, len(prompt))),
        baseline=plain,
    )
    return replace(row, **changes)


def write_run(folder: Path, rows: list[TurnRecord], *manifests: dict[str, Any]) -> Path:
    """A folder with `turns.jsonl` and `manifest.json`."""
    folder.mkdir(parents=True, exist_ok=True)
    for row in rows:
        records.append(folder / "turns.jsonl", row)
    (folder / "manifest.json").write_text(json.dumps({"runs": list(manifests)}))
    return folder
