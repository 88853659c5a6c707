"""Run folders as lm-eval and our models leave them, of made-up figures."""

import json
import random
from collections.abc import Collection
from dataclasses import replace
from pathlib import Path
from typing import Any

from sample_rows import PAIRED_ROW, SPEC, with_baseline, with_counts

from copyspec_eval import records
from copyspec_eval.manifest import RunManifest, write_manifest
from copyspec_eval.records import SpanCharacters, TurnRecord
from copyspec_eval.reports.leaderboard import Leaderboard, leaderboard
from copyspec_eval.reports.recorded import read_runs

MADE = {
    "started_at": "2026-01-02T03:04",
    "versions": {"torch": "2"},
    "hardware": {"processor": "P", "accelerators": []},
}
HOSTILE = (
    "<script>window.hacked = 1</script></script><img src=x onerror='window.hacked=1'>"
    " \"quotes\" & 'more' \u2028 \U0001f680\U0001f469\u200d\U0001f680 \u05e9\u05dc\u05d5\u05dd "
    "\u202eabc\u202c <!-- </textarea> ${x}"
)


def manifest(run_id: str, **changes: Any) -> RunManifest:
    """The manifest of a run whose spec is `SPEC` with `changes`."""
    return RunManifest(
        run_id=run_id,
        started_at="2026-01-02T03:04:05+00:00",
        command=f"lm_eval --model copyspec --model_args pretrained=M  # {run_id}",
        spec=replace(SPEC, **changes),
    )


def turn(run_id: str, doc: int, turn: int, seed: int = 0, **changes: Any) -> TurnRecord:
    """A turn that copied its second sentence."""
    source = random.Random(f"{seed} {doc} {turn}")

    def times(least: float) -> dict[str, float]:
        shortest = {"seconds": least, "decode_seconds": least - 0.5, "latency_seconds": least}
        return {name: seconds + source.random() for name, seconds in shortest.items()}

    row = with_baseline(PAIRED_ROW, **times(2.0))
    row = with_counts(row, num_prompt_tokens=50 + 10 * doc, **times(1.0))
    assert row.baseline is not None
    prompt, answer = f"Say it again {doc}. It is so.", "I do: It is so."
    made: dict[str, Any] = {"run_id": run_id, "doc_id": doc, "turn": turn, "prompt": prompt}
    made |= {"category": ("math", "writing")[doc % 2], "text": answer, "answer": answer}
    made["span_characters"] = (SpanCharacters(6, 15, len(prompt) - 9, len(prompt)),)
    made["baseline"] = replace(row.baseline, difference=None)
    return replace(row, **(made | changes))


def turns(run_id: str, docs: int = 4, **changes: Any) -> list[TurnRecord]:
    """Two turns of each document."""
    return [turn(run_id, doc, number, **changes) for doc in range(docs) for number in (1, 2)]


def board(*folders: Path) -> Leaderboard:
    return leaderboard(read_runs(folders))


def write_run(
    folder: Path, rows: list[TurnRecord], *manifests: RunManifest, cut_short: Collection[str] = ()
) -> Path:
    """A folder with `turns.jsonl` and `manifest.json`, and results of all runs but `cut_short`."""
    folder.mkdir(parents=True, exist_ok=True)
    for row in rows:
        records.append(folder / "turns.jsonl", row)
    for run in manifests:
        write_manifest(folder, run)
    for run_id in {row.run_id for row in rows} - {*cut_short}:
        results = {"config": {"copyspec": {"run_id": run_id}}, "results": {}}
        (folder / f"results_{run_id}.json").write_text(json.dumps(results))
    return folder


def recorded_run(
    folder: Path, run_id: str, rows: list[TurnRecord] | None = None, **changes: Any
) -> Path:
    """A whole run with a manifest: `rows` or else `turns`, and `SPEC` with `changes`."""
    return write_run(folder, turns(run_id) if rows is None else rows, manifest(run_id, **changes))
