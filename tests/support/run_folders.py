"""Run folders, as small as they can be, written as lm-eval writes them."""

import hashlib
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

DATE = "2026-01-01T00-00-00.000001"


def sha256(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def sample(
    doc_id: int,
    prompts: Iterable[str],
    resps: list[list[str]],
    filter: str = "none",
    **metrics: Any,
) -> dict[str, Any]:
    """A row of lm-eval's sample log."""
    settings = {"until": [], "do_sample": False}
    arguments = [{"arg_0": prompt, "arg_1": settings} for prompt in prompts]
    return {
        "doc_id": doc_id,
        "doc": {},
        "arguments": {f"gen_args_{i}": argument for i, argument in enumerate(arguments)},
        "resps": resps,
        "filtered_resps": [answers[0] for answers in resps],
        "filter": filter,
        "metrics": list(metrics),
        **metrics,
    }


def write_log(
    folder: Path,
    samples: list[dict[str, Any]],
    date: str = DATE,
    task: str = "the_task",
    run_id: str = "",
    original: int = 0,
    **results: Any,
) -> Path:
    """A task's sample log; the results file of that date has it too, as lm-eval writes them."""
    path = folder / "model" / f"samples_{task}_{date}.jsonl"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in samples))
    parts: dict[str, dict[str, Any]] = {
        "config": {"model_dtype": "torch.bfloat16"},
        "configs": {task: {"repeats": 1}},
        "results": {task: {"name": task, "sample_len": len(samples), **_means(samples)}},
    }
    if run_id:
        parts["config"]["copyspec"] = {"run_id": run_id}
    if original:
        parts["n-samples"] = {task: {"original": original, "effective": len(samples)}}
    file = path.parent / f"results_{date}.json"
    written = json.loads(file.read_text()) if file.exists() else {}
    merged = {name: written.get(name, {}) | part for name, part in parts.items()}
    file.write_text(json.dumps(written | results | merged))
    return path


def _means(samples: list[dict[str, Any]]) -> dict[str, Any]:
    """Each metric's mean, and its error, as in a results file."""
    values: dict[str, list[float]] = {}
    for row in samples:
        for name in row.get("metrics", []):
            if isinstance(row[name], int | float):
                values.setdefault(f"{name},{row['filter']}", []).append(row[name])
    means: dict[str, Any] = {key: sum(numbers) / len(numbers) for key, numbers in values.items()}
    return means | {key.replace(",", "_stderr,"): "N/A" for key in values}


CONVERSATION = sample(7, ["Q", "Q yes R"], [["yes", "padded"], ["no\u2028"]], acc=True)


def write_conversations(
    folder: Path, task: str, questions: Iterable[Mapping[str, Any]], answer: str = "A{turn}"
) -> Path:
    """A two-turn run of `questions`, rows of FastChat's file; `answer` is filled in per turn."""
    rows = []
    for doc_id, doc in enumerate(questions):
        texts = [[answer.format(turn=turn, **doc)] for turn in (1, 2)]
        rows.append(sample(doc_id, doc["turns"], texts) | {"doc": dict(doc)})
    return write_log(folder, rows, task=task, model_name_sanitized="org__model")
