"""Where the time of a step, or of a long prompt, goes: kernels, the rest of forwards, all else."""

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from random import Random
from time import perf_counter
from typing import Any
from unittest import mock

import torch
from transformers import LogitsProcessorList

from benchmarks.decoders import processor
from copyspec_eval.decoding import kernels, row_runner
from copyspec_eval.decoding.choosing import TokenChooser
from copyspec_eval.decoding.engine import Engine
from copyspec_eval.decoding.repeated_steps import Steps
from copyspec_eval.decoding.sequence import Sequence
from copyspec_eval.decoding.stopping import StopRule
from copyspec_eval.drafters.base import Drafter, NoDrafter
from copyspec_eval.reports.tables import markdown
from copyspec_eval.types import Draft, ExactMode

_PROMPT_TOKENS, _LONG_PROMPT_TOKENS = 300, 2000
_WIDTH = 16
"""Tokens of a step with drafts, all rejected, of each row."""
_COLUMNS = ("linear layers", "attention", "other kernels", "rest of the forward", "all else")
_PARTS = {"linear": "linear layers", "attend": "attention"}

Row = dict[str, Any]
"""`tokens` of each row, `batch_size`, `ms` of a step, and the share of each of `_COLUMNS` in it.

The last row is a prompt, of `_LONG_PROMPT_TOKENS`.
"""


class _AlwaysDrafts(Drafter):
    """Drafts the same token at every step: what becomes of it does not matter for the time."""

    def propose(self, budget: int, longest: int, threshold: float) -> Draft:
        return Draft((1,) * min(_WIDTH - 1, budget))


def profile(model: Any, batch_sizes: list[int], num_tokens: int) -> Iterator[Row]:
    """One row per batch size and width: answers of `num_tokens` tokens to prompts of 300."""
    for batch_size in batch_sizes:
        for tokens, drafter in ((1, NoDrafter), (_WIDTH, _AlwaysDrafts)):
            engine = _engine(model, batch_size, drafter)
            with _timed(Steps, "read") as seconds:
                # Near its end an answer has shorter steps: met first, recorded the second time.
                sequences = _answered(engine, seconds, _PROMPT_TOKENS, num_tokens)
            steps = sequences[0].num_forwards - 1
            whole = sum(sequence.decode_seconds for sequence in sequences)
            shares = _shares(seconds, whole)
            yield {"tokens": tokens, "batch_size": batch_size, "ms": 1e3 * whole / steps, **shares}
    engine = _engine(model, 1, NoDrafter)
    with _timed(row_runner, "forward") as seconds:
        (sequence,) = _answered(engine, seconds, _LONG_PROMPT_TOKENS, num_tokens=1)
    whole = sequence.prefill_seconds
    shares = _shares(seconds, whole)
    yield {"tokens": _LONG_PROMPT_TOKENS, "batch_size": 1, "ms": 1e3 * whole, **shares}


def _engine(model: Any, batch_size: int, drafter: Callable[[], Drafter]) -> Engine:
    exact, most = ExactMode(), _WIDTH - 1
    return Engine(model, drafter, num_draft_tokens=most, exact=exact, batch_size=batch_size)


def _answered(
    engine: Engine, seconds: dict[str, float], num_prompt_tokens: int, num_tokens: int
) -> list[Sequence]:
    """The third time that prompts are answered, and its `seconds`."""
    source = Random(0)
    prompts = [
        [source.randrange(1000) for _ in range(num_prompt_tokens)] for _ in range(engine.batch_size)
    ]
    for _ in range(3):
        seconds.clear()
        sequences = _sequences(prompts, num_tokens)
        engine.generate(sequences)
    return sequences


def _shares(seconds: dict[str, float], whole: float) -> dict[str, float]:
    kernel_seconds = sum(seconds[name] for name in _COLUMNS[:3])
    seconds["rest of the forward"] = seconds.pop("forward") - kernel_seconds
    seconds["all else"] = whole - sum(seconds.values())
    return {name: seconds[name] / whole for name in _COLUMNS}


def _sequences(prompts: list[list[int]], num_tokens: int) -> list[Sequence]:
    chooser = partial(TokenChooser, LogitsProcessorList(), do_sample=False)
    return [Sequence(prompt, StopRule(num_tokens), chooser()) for prompt in prompts]


@contextmanager
def _timed(owner: object, forward: str) -> Iterator[defaultdict[str, float]]:
    """Seconds inside calls of a function, whole forwards, and inside our kernels there."""
    seconds: defaultdict[str, float] = defaultdict(float)
    function, whole = kernels._function, getattr(owner, forward)
    is_inside = False

    def timed(name: str, call: Callable[..., Any], *args: Any) -> Any:
        started = perf_counter()
        result = call(*args)
        seconds[name] += (perf_counter() - started) * is_inside
        return result

    def kernel(name: str, dtype: torch.dtype | None) -> Callable[..., Any]:
        part, call = _PARTS.get(name, "other kernels"), function(name, dtype)
        return lambda arguments: timed(part, call, arguments)

    def watched(*args: Any, **options: Any) -> Any:
        nonlocal is_inside
        is_inside = True
        try:
            return timed("forward", partial(whole, **options), *args)
        finally:
            is_inside = False

    replaced = mock.patch.object
    with replaced(kernels, "_function", kernel), replaced(owner, forward, watched):
        yield seconds


def table(rows: list[Row]) -> str:
    header = ["tokens of a row", "batch", "ms of a step", *_COLUMNS]
    cells = [
        [row["tokens"], row["batch_size"], f"{row['ms']:.1f}"]
        + [f"{row[name]:.0%}" for name in _COLUMNS]
        for row in rows
    ]
    return markdown(header, cells)


def render(result: Mapping[str, Any]) -> str:
    """The table, under what was measured and where."""
    run = result["manifest"]
    versions = ", ".join(f"{name} {version}" for name, version in run["versions"].items())
    return (
        f"# Where a step's time goes\n\n{result['model']} in bfloat16, after some "
        f"{_PROMPT_TOKENS} tokens. {processor(run['hardware'])}, {run['threads']} threads; "
        f"{versions}; {run['started_at'][:10]}\n\n```\nscripts/{run['command']}\n```\n\n"
        f"{table(result['rows'])}"
    )
