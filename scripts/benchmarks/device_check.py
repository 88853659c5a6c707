"""What decoding does on a device: seven parts; what becomes of one does not stop the others.

Needs torch and transformers, nothing else: neither lm-eval nor an installed copyspec_eval.
"""

import gc
import logging
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from time import perf_counter
from typing import Any

import torch
from transformers import LogitsProcessorList

from benchmarks.device_drafts import SCRIPTED, Prompt, Setting, is_equal
from benchmarks.device_steps import (
    CONTEXT,
    EXTENT,
    copy_bandwidth,
    first_line,
    generate_milliseconds,
    time_steps,
    token_bytes,
    weight_bytes,
)
from benchmarks.device_subject import LONGEST, Subject
from benchmarks.memory import PeakMemory
from copyspec_eval import provenance
from copyspec_eval.decoding.choosing import TokenChooser
from copyspec_eval.decoding.engine import Engine
from copyspec_eval.decoding.exactness import mismatches, text_tokens
from copyspec_eval.decoding.sequence import Sequence
from copyspec_eval.decoding.stopping import StopRule
from copyspec_eval.drafters.base import NoDrafter
from copyspec_eval.drafters.registry import DRAFTERS
from copyspec_eval.pairs.differences import Rescorer
from copyspec_eval.types import ExactMode

DTYPES = (torch.float32, torch.bfloat16)
BATCH_SIZES = (1, 4, 8)
_EAGER = [ExactMode(width) for width in (1, 8, 16, 32)]
_ON_CUDA = [ExactMode(1, "captured"), ExactMode(16, "captured")]
"""Steps that are timed."""
_MODULE_WIDTHS = range(1, 65)
_PROMPT, _ANSWER = 512, 32
"""Tokens of each request whose memory is measured."""

Part = dict[str, Any]
"""What a part reports: whether it is `ok`, `lines` for people, and its figures."""


def check_device(subject: Subject) -> Iterator[tuple[str, Part]]:
    """Each part with its name as soon as it is done; one that raises reports its error."""
    for name, part in PARTS.items():
        print(f"{name} ...", file=sys.stderr, flush=True)
        started = perf_counter()
        with _logged() as lines:
            try:
                result = part(subject)
            except Exception as error:
                result = {"ok": False, "lines": [first_line(error)]}
        yield name, result | {"seconds": round(perf_counter() - started, 1), "log": lines}


@contextmanager
def _logged() -> Iterator[list[str]]:
    """What the package logs, such as why steps are not captured."""
    lines: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: lines.append(record.getMessage())  # type: ignore[method-assign]
    logger = logging.getLogger("lm_eval.copyspec")
    logger.setLevel(logging.INFO)
    logger.addHandler(handler)
    try:
        yield lines
    finally:
        logger.removeHandler(handler)


def _device(subject: Subject) -> Part:
    hardware, versions = provenance.hardware(), provenance.versions()
    used = hardware["accelerators"] if subject.device != "cpu" else [hardware["processor"]]
    return {
        "ok": bool(used),
        "lines": [
            f"{', '.join(used)}; torch {versions['torch']}, transformers {versions['transformers']}"
        ],
        "hardware": hardware,
        "versions": versions,
        "kernel_environment": provenance.kernel_environment(),
        "float32_allow_tf32": torch.backends.cuda.matmul.allow_tf32,
        "float32_matmul_precision": torch.get_float32_matmul_precision(),
    }


def _mode(subject: Subject) -> Part:
    """In the model that is compared, and in the larger one that is timed."""
    cases = [(dtype, size, False) for dtype in DTYPES for size in BATCH_SIZES]
    if subject.device != "cpu":
        cases.append((torch.bfloat16, 1, True))
    rows, lines = [], []
    for dtype, batch_size, is_timed in cases:
        started = perf_counter()
        mode = subject.mode(dtype, batch_size, is_timed)
        seconds = round(perf_counter() - started, 1)
        what = f"{_name(dtype)}, batch {batch_size}{', the timed model' * is_timed}"
        name = mode if isinstance(mode, str) else f"{mode.name} {mode.width or ''}".strip()
        lines.append(f"{what}: {name} ({seconds} s)")
        row = {"dtype": _name(dtype), "batch_size": batch_size, "is_timed": is_timed}
        row |= {"mode": name, "seconds": seconds}
        row["steps"] = mode.steps if isinstance(mode, ExactMode) else None
        usual = "eager" if subject.device == "cpu" else "captured"
        rows.append(row | {"is_as_wanted": row["steps"] == usual})
    return {"ok": all(row["is_as_wanted"] for row in rows), "lines": lines, "modes": rows}


def _generate(subject: Subject) -> Part:
    """Plain decoding against `model.generate`; where they differ, rounding has to explain it."""
    rows, lines = [], []
    for dtype in DTYPES:
        exact, model = subject.exact(dtype, 1), subject.model(dtype)
        engine = Engine(model, NoDrafter, num_draft_tokens=LONGEST, exact=exact)
        sequences = [
            Sequence(ids, StopRule(subject.sizes.budget), _greedy()) for ids in subject.prompts()
        ]
        answers = [list(answer.token_ids) for answer in engine.generate(sequences)]
        rescorer = Rescorer(model, engine, engine)
        agreements = []
        for sequence, answer in zip(sequences, answers, strict=True):
            theirs = _generated(model, sequence.prompt_ids, subject.sizes.budget)
            difference = rescorer.explain(sequence.restarted(), theirs, answer)
            agreements.append(difference.agreement if difference else "identical")
        counts = {each: agreements.count(each) for each in ("identical", "near_tie", "diverged")}
        rows.append({"dtype": _name(dtype), **counts})
        lines.append(f"{_name(dtype)}: " + ", ".join(f"{n} {name}" for name, n in counts.items()))
    return {"ok": not any(row["diverged"] for row in rows), "lines": lines, "answers": rows}


def _generated(model: Any, prompt_ids: Prompt, budget: int) -> list[int]:
    ids = torch.tensor([prompt_ids], device=model.device)
    options: dict[str, Any] = {"do_sample": False, "max_new_tokens": budget, "eos_token_id": None}
    options |= {"pad_token_id": 0, "attention_mask": torch.ones_like(ids)}
    # Those of a model's generation config that change greedy answers.
    options |= {"repetition_penalty": 1.0}
    output: list[int] = model.generate(ids, **options)[0, len(prompt_ids) :].tolist()
    return output


def _greedy() -> TokenChooser:
    return TokenChooser(LogitsProcessorList(), do_sample=False)


def _drafters(subject: Subject) -> Part:
    """All drafters at all batch sizes: the bits of all logits, then answers by the argmax, paired.

    The control, wide steps without exact mode, tells whether there is anything to be exact about.
    """
    equality, paired, control, lines = [], [], [], []
    prompts, budget = subject.prompts(), subject.sizes.budget
    for dtype in DTYPES:
        for batch_size in BATCH_SIZES:
            exact, model = subject.exact(dtype, batch_size), subject.model(dtype)
            name = f"{_name(dtype)}, batch {batch_size}"
            if exact is None:
                lines.append(f"{name}: not run, since exact mode is refused")
                continue
            setting = Setting(model, prompts, budget, LONGEST, batch_size, exact)
            rows = setting.compare_with_none([*SCRIPTED, *DRAFTERS])
            paired.append(setting.paired())
            equality += rows
            unequal = [row["drafter"] for row in rows if not is_equal(row)]
            if paired[-1]["identical"] < paired[-1]["answers"]:
                unequal.append("paired")
            lines.append(f"{name}: {f'NOT EQUAL: {unequal}' if unequal else 'all equal'}")
        inexact = Setting(subject.model(dtype), prompts, budget, LONGEST, 1, exact=None)
        control += inexact.compare_with_none(["right"])
    return {
        "ok": bool(equality)
        and all(map(is_equal, equality))
        and all(row["identical"] == row["answers"] for row in paired),
        "lines": lines,
        "equality": equality,
        "paired": paired,
        "control": control,
        "control_differs": any(row["equal"] < row["compared"] for row in control),
    }


def _steps(subject: Subject) -> Part:
    """In bfloat16: eager, captured, and the bound, which is bytes by bandwidth."""
    sizes = subject.sizes
    model = subject.model(torch.bfloat16, is_timed=True)
    bandwidth = copy_bandwidth(model.device, sizes.copied_bytes, sizes.rounds)
    read, usual = weight_bytes(model), generate_milliseconds(model, max(1, sizes.rounds // 5))
    modes = [*_EAGER, *(_ON_CUDA if subject.device != "cpu" else [])]
    lines = [
        f"{read / 1e9:.2f} GB of weights are read, copies take {bandwidth / 1e9:.0f} GB/s",
        f"batch 1, a token of model.generate: {usual} ms",
    ]
    rows = []
    for batch_size in BATCH_SIZES:
        for row in time_steps(model, batch_size, modes, sizes.rounds):
            row["bound_ms"] = round(
                1e3 * (read + batch_size * EXTENT * token_bytes(model)) / bandwidth, 3
            )
            rows.append(row)
            lines.append(
                f"batch {batch_size}, {row['width']} tokens a row, {row['steps']}: {row['ms']} ms, "
                f"bound {row['bound_ms']} ms; prepared in {row['seconds']} s"
            )
    return {
        "ok": bool(rows) and all(row["is_finite"] and row["ms"] > 0 for row in rows),
        "lines": lines,
        "weight_bytes": read,
        "copy_bytes_per_second": round(bandwidth),
        "context": CONTEXT,
        "generate_ms": usual,
        "steps": rows,
    }


def _memory(subject: Subject) -> Part:
    """The peak of answering a batch, against weights and cache; and what stays after it."""
    batch_size = max(BATCH_SIZES)
    model = subject.model(torch.bfloat16, is_timed=True)
    token_ids = text_tokens(subject.tokenizer())
    token_ids = (token_ids * (1 + _PROMPT // len(token_ids)))[:_PROMPT]
    exact = subject.exact(torch.bfloat16, batch_size, is_timed=True)
    engine = Engine(model, NoDrafter, num_draft_tokens=LONGEST, exact=exact, batch_size=batch_size)

    def answer() -> None:
        rules = [StopRule(_ANSWER) for _ in range(batch_size)]
        engine.generate([Sequence(token_ids, rule, _greedy()) for rule in rules])
        gc.collect()

    peak = PeakMemory(model.device)
    answer()  # keeps the cache, for the next batch
    before, highest = _allocated(model.device), peak.num_bytes
    answer()
    left = _allocated(model.device) - before
    weights = sum(weight.nbytes for weight in model.parameters())
    cache = batch_size * (_PROMPT + _ANSWER) * token_bytes(model)
    return {
        "ok": left < 1 << 20,
        "lines": [
            f"weights {weights / 1e9:.2f} GB, keys and values {cache / 1e9:.3f} GB, peak "
            f"{highest / 1e9:.2f} GB{' of the process' * (subject.device == 'cpu')}; "
            f"{left} bytes stay"
        ],
        "weight_bytes": weights,
        "cache_bytes": cache,
        "token_bytes": token_bytes(model),
        "peak_bytes": highest,
        "bytes_left": left,
    }


def _allocated(device: torch.device) -> int:
    return int(torch.cuda.memory_allocated(device)) if device.type == "cuda" else 0


def _modules(subject: Subject) -> Part:
    """Where one-token steps and wider ones differ: the first module, and at which widths alone."""
    rows, lines = [], []
    for dtype in DTYPES:
        model, token_ids = subject.model(dtype), text_tokens(subject.tokenizer())
        readings = list(mismatches(model, token_ids, ExactMode(), LONGEST, 1))
        widths: dict[str, list[int]] = {}
        for _, name in readings:
            if isinstance(module := _submodule(model, name), torch.nn.Linear):
                widths.setdefault(name, _unequal_widths(module))
        what = [f"{each.what}: {each.module}" for each in readings]
        rows.append({"dtype": _name(dtype), "readings": what, "unequal_widths": widths})
        lines.append(f"{_name(dtype)}: {what[0] if what else 'every module is invariant'}")
        lines += [f"  {name} alone: differs at widths {at}" for name, at in widths.items()]
    return {"ok": True, "lines": lines, "modules": rows}


def _submodule(model: Any, name: str) -> Any:
    return dict(model.named_modules()).get(name)


@torch.inference_mode()
def _unequal_widths(layer: torch.nn.Linear) -> list[int]:
    """Numbers of tokens with which the first one's bits are not those that it has alone."""
    weight = layer.weight
    source = torch.Generator().manual_seed(0)
    shape = max(_MODULE_WIDTHS), weight.shape[1]
    hidden = torch.randn(shape, generator=source).to(weight.device, weight.dtype)
    alone = layer(hidden[:1])
    return [n for n in _MODULE_WIDTHS if not torch.equal(layer(hidden[:n])[:1], alone)]


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


PARTS: Mapping[str, Callable[[Subject], Part]] = {
    "device": _device,
    "mode": _mode,
    "generate": _generate,
    "drafters": _drafters,
    "steps": _steps,
    "memory": _memory,
    "modules": _modules,
}
