"""`docs/scaling.md`: what `sizing.formula` computes, and what was measured beside it."""

import math
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from copyspec_eval.reports.tables import markdown
from sizing.formula import Step, cache_bytes, devices_needed, memory, read_bytes, step_seconds
from sizing.shapes import H100, MODELS, SOURCES, Device, Shape

_REPOSITORY = Path(__file__).parents[2]
PATH = _REPOSITORY / "docs" / "scaling.md"
_TEMPLATE = Path(__file__).parent / "template.md"
MEASURED = _REPOSITORY / "results" / "scaling" / "measured.json"

_CONTEXT = 8192
_GPUS = 8
_PREFIX_CACHE = 2e9
"""Bytes; the default of `prefix_cache`."""
_WEIGHTS = {"bfloat16": 2.0, "4 bits": 0.5}
"""Bytes per weight; what scales and zero points take beside four bits is left out."""
_DTYPE_BYTES = {"bfloat16": 2, "float32": 4}


def render(measured: Mapping[str, Any]) -> str:
    """The document, of what `sizing.measure` found."""
    run = measured["manifest"]
    versions = ", ".join(f"{name} {version}" for name, version in run["versions"].items())
    config, hardware = run["config"], run["hardware"]
    ratios = [row["seconds"] / predicted_seconds(measured, row) for row in measured["steps"]]
    return _TEMPLATE.read_text().format(
        context=f"{_CONTEXT:,}",
        gpus=_GPUS,
        models=_models(),
        memory=_memory(),
        speed=_speed(),
        drafts=_drafts(),
        model=config["model"],
        machine=f"{hardware['processor']}, {config['threads']} threads; {run['started_at'][:10]};\n"
        f"{versions}",
        checked=_checked(measured),
        least=f"{min(ratios):.1f}",
        most=f"{max(ratios):.1f}",
        command=f"scripts/{run['command']}",
        sources="\n".join(f"* {source}" for source in SOURCES),
    )


def predicted_seconds(measured: Mapping[str, Any], row: Mapping[str, Any]) -> float:
    """Of a measured step on the CPU, which is limited by its memory alone."""
    cpu = Device(memory=math.inf, bandwidth=row["copy_bytes_per_second"], flops=math.inf)
    size = _DTYPE_BYTES[row["dtype"]]
    step = Step(context=row["context"], weight_bytes=size, value_bytes=size)
    return step_seconds(Shape(**measured["shape"]), cpu, step)


def _models() -> str:
    rows = []
    for name, shape in MODELS.items():
        cached = cache_bytes(shape, Step(width=1))
        rows.append(
            [
                name,
                f"{shape.num_weights / 1e9:.1f}",
                f"{read_bytes(shape, Step(weight_bytes=1, value_bytes=0)) / 1e9:.1f}",
                *(f"{shape.num_weights * size / 1e9:.0f}" for size in _WEIGHTS.values()),
                f"{cached / 1e3:.0f}",
                f"{int(_PREFIX_CACHE / cached):,}",
            ]
        )
    headers = ["", "weights, billion", "read for a token, billion"]
    headers += [
        f"GB in {name}" if size == 2 else f"GB at {name}" for name, size in _WEIGHTS.items()
    ]
    return markdown([*headers, "cache, kB per token", "tokens in 2 GB of prefix cache"], rows)


def _memory() -> str:
    rows = []
    for name, shape in MODELS.items():
        for weights, size in _WEIGHTS.items():
            steps = [Step(rows=rows, context=_CONTEXT - 1, weight_bytes=size) for rows in (1, 32)]
            rows.append(
                [
                    name,
                    weights,
                    *(f"{cache_bytes(shape, step) / 1e9:.1f}" for step in steps),
                    *(f"{memory(shape, step) / 1e9:.0f}" for step in steps),
                    *(devices_needed(shape, H100, step) for step in steps),
                ]
            )
    headers = ["", "weights", "cache of 1 row, GB", "of 32 rows, GB"]
    headers += ["with 1 row, GB", "with 32 rows, GB", "GPUs for 1 row", "for 32 rows"]
    return markdown(headers, rows)


def _speed() -> str:
    rows = []
    for name, shape in MODELS.items():
        for weights, size in _WEIGHTS.items():
            for num_rows in (1, 32):
                step = Step(rows=num_rows, context=_CONTEXT - 1, weight_bytes=size)
                needed = devices_needed(shape, H100, step)
                alone, together = (step_seconds(shape, H100, step, n) for n in (1, _GPUS))
                ranks = _GPUS // needed
                rows.append(
                    [
                        name,
                        weights,
                        num_rows,
                        needed,
                        f"{alone * 1e3:.1f}",
                        f"{num_rows / alone:,.0f}",
                        ranks,
                        f"{ranks * num_rows / alone:,.0f}",
                        f"{together * 1e3:.1f}",
                        f"{num_rows / together:,.0f}",
                    ]
                )
    headers = ["", "weights", "rows", "GPUs needed", "ms a step", "tokens/s", f"ranks on {_GPUS}"]
    headers += ["tokens/s of all ranks", f"tensor parallel on {_GPUS}, ms", "its tokens/s"]
    return markdown(headers, rows)


def _drafts() -> str:
    rows = []
    widths = (1, 4, 16, 64)
    for name, shape in MODELS.items():
        for exact in (False, True) if shape.num_experts > 1 else (False,):
            for num_rows in (1, 32):
                step = Step(rows=num_rows, context=_CONTEXT, every_expert=exact)
                plain = step_seconds(shape, H100, replace(step, every_expert=False))
                times = [step_seconds(shape, H100, replace(step, width=width)) for width in widths]
                shown = f"{name}, exact" if exact else name
                rows.append([shown, num_rows, *(f"{seconds / plain:.2f}" for seconds in times)])
    return markdown(["", "rows", "1 token", *(f"{width} tokens" for width in widths[1:])], rows)


def _checked(measured: Mapping[str, Any]) -> str:
    rows = []
    for row in measured["steps"]:
        seconds = predicted_seconds(measured, row)
        rows.append(
            [
                row["dtype"],
                f"{row['context']:,}",
                f"{row['copy_bytes_per_second'] / 1e9:.1f}",
                f"{seconds * 1e3:.1f}",
                f"{row['seconds'] * 1e3:.1f}",
                f"{row['seconds'] / seconds:.2f}",
            ]
        )
    headers = ["dtype", "context", "copies, GB/s", "predicted ms", "measured ms"]
    return markdown([*headers, "measured / predicted"], rows)
