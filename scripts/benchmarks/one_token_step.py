"""How near a step of one token comes to the machine's limit: reading every weight once."""

from collections import defaultdict
from collections.abc import Callable, Mapping
from functools import partial
from statistics import median
from time import perf_counter
from typing import Any

import torch
from transformers import (
    LogitsProcessorList,
    RepetitionPenaltyLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from copyspec_eval.decoding.cache import RowCache
from copyspec_eval.decoding.choosing import TokenChooser, argmax_tokens
from copyspec_eval.decoding.forward import Part, forward, key_extent
from copyspec_eval.decoding.modules import engine_kernels
from copyspec_eval.reports.tables import markdown

_CONTEXT = 512
_STEPS, _UNTIMED, _COPIES = 8, 3, 2
"""Steps of a round, those of them that follow other work, and copies."""
_LOGITS_DEVIATION = 3.0
"""About that of a model's logits."""

_CHOICES: dict[str, tuple[bool, Callable[[], list[Any]]]] = {
    "repetition penalty 1.1": (False, lambda: [RepetitionPenaltyLogitsProcessor(1.1)]),
    "sampling, temperature 0.7": (True, lambda: [TemperatureLogitsWarper(0.7)]),
    "sampling, penalty 1.1, temperature 0.7, top-k 20, top-p 0.8": (
        True,
        lambda: [
            RepetitionPenaltyLogitsProcessor(1.1),
            TemperatureLogitsWarper(0.7),
            TopKLogitsWarper(20),
            TopPLogitsWarper(0.8),
        ],
    ),
}
"""Ways of choosing a token: whether it is drawn, and the logits processors."""

Figures = dict[str, float]
"""Median milliseconds of a `step`, of a `copy` of as many bytes as the weights have, and of each
choice; and as `… of the step`, the median share of reading the weights (half of a copy, which reads
and writes) and of each choice in the step of the same round."""


@torch.inference_mode()
def measure(model: Any, rounds: int = 24) -> dict[str, Any]:
    """The bytes of the weights, those that are shared once, and `Figures`.

    In every round steps, copies and choices follow each other, so that a machine that is faster at
    one time than at another is so for all.
    """
    return {"weight_bytes": _num_bytes(model), "figures": _round_figures(model, rounds)}


def _num_bytes(model: Any) -> int:
    return sum(weight.nbytes for weight in model.parameters())


def _round_figures(model: Any, rounds: int) -> Figures:
    source = torch.zeros(_num_bytes(model), dtype=torch.uint8, device=model.device)
    target = torch.empty_like(source)
    cache, part = RowCache(1, key_extent(_CONTEXT + 1)), Part(0, _CONTEXT, [1])

    def step() -> None:
        argmax_tokens(forward(model, cache, [part]), [slice(1)])

    def copy() -> None:
        target.copy_(source)
        int(target[-1])

    choices = _choices(model.config.vocab_size)
    seconds: defaultdict[str, list[float]] = defaultdict(list)
    with engine_kernels(model, exact=False):
        for _ in range(1 + rounds):
            of_steps = [_seconds(step) for _ in range(_STEPS)][_UNTIMED:]
            seconds["step"].append(median(of_steps))
            seconds["copy"].append(median(_seconds(copy) for _ in range(_COPIES)))
            for name, choose in choices.items():
                seconds[name].append(_seconds(choose))
    of_rounds = {name: values[1:] for name, values in seconds.items()}
    actual = {name: 1e3 * median(values) for name, values in of_rounds.items()}
    of_rounds["reading"] = [copied / 2 for copied in of_rounds.pop("copy")]
    in_turn = of_rounds.pop("step")
    for name, values in of_rounds.items():
        shares = (value / step for value, step in zip(values, in_turn, strict=True))
        actual[f"{name} of the step"] = median(shares)
    return actual


def _choices(vocabulary: int) -> dict[str, Callable[[], None]]:
    """Each way of choosing a token, of the same logits and after as many tokens as the step."""
    generator = torch.Generator().manual_seed(0)
    logits = _LOGITS_DEVIATION * torch.randn(vocabulary, generator=generator)
    ids = torch.randint(vocabulary, (_CONTEXT,), generator=generator).tolist()

    def choose(chooser: TokenChooser) -> None:
        ids.append(chooser.choose(ids, logits))

    return {
        name: partial(choose, TokenChooser(LogitsProcessorList(processors()), do_sample))
        for name, (do_sample, processors) in _CHOICES.items()
    }


def _seconds(action: Callable[[], None]) -> float:
    started = perf_counter()
    action()
    return perf_counter() - started


def table(result: Mapping[str, Any]) -> str:
    """A row per figure."""
    figures: Figures = result["figures"]
    rows = [
        [name, f"{figure:.1%}"]
        if name.endswith(" of the step")
        else [f"{name}, ms", f"{figure:.2f}"]
        for name, figure in figures.items()
    ]
    return markdown(["", "none"], rows)


def render(result: Mapping[str, Any]) -> str:
    """The table, under what was measured and where."""
    run = result["manifest"]
    versions = ", ".join(f"{name} {version}" for name, version in run["versions"].items())
    return (
        "# A step of one token\n\nA model of the shape of Qwen2.5-0.5B in bfloat16, "
        f"{result['weight_bytes'] / 1e9:.3f} GB of weights; a step after {_CONTEXT} tokens, a copy "
        "of as many bytes as the weights have, and choosing a token of a vocabulary of 151,936: "
        "medians of rounds, each with all of them. Reading is half of a copy, which reads and "
        f"writes. {run['hardware']['processor']}, {run['threads']} threads; {versions}; "
        f"{run['started_at'][:10]}\n\n```\nscripts/{run['command']}\n```\n\n{table(result)}"
    )
