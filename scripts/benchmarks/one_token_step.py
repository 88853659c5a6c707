"""How near a step of one token comes to the machine's limit: reading every weight once."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
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
from copyspec_eval.decoding.compiling import compile_layers
from copyspec_eval.decoding.serving import served
from copyspec_eval.decoding.steps import Steps

_CONTEXT = 512
_LOGITS_DEVIATION = 3.0

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


@dataclass(frozen=True, slots=True)
class OneTokenStep:
    """Seconds, each the median of some rounds.

    Attributes:
        weight_bytes: of all weights, those that are shared once.
        copy_seconds: to copy so many bytes, which are read and written: reading alone is taken as
            half of it.
        step_seconds: of a step of one token after 512, layer by layer and with compiled layers.
        choice_seconds: to choose a token of the vocabulary after as many.
    """

    weight_bytes: int
    copy_seconds: float
    step_seconds: dict[str, float]
    choice_seconds: dict[str, float]

    @property
    def reading_seconds(self) -> float:
        """Of every weight once, at the bandwidth of the copy."""
        return self.copy_seconds / 2


@torch.inference_mode()
def measure(model: Any, rounds: int = 24) -> dict[str, Any]:
    """An `OneTokenStep` of `model`, as a dictionary. On a CPU its layers are compiled for good."""
    num_bytes = sum(weight.nbytes for weight in model.parameters())
    source = torch.zeros(num_bytes, dtype=torch.uint8, device=model.device)
    target = torch.empty_like(source)

    def copy() -> None:
        target.copy_(source)
        int(target[-1])

    step_seconds = {"none": _step_seconds(model, rounds)}
    copied = _medians([copy], rounds)
    if model.device.type == "cpu":
        compile_layers(model)
        step_seconds["none, compile"] = _step_seconds(model, rounds)
        copied += _medians([copy], rounds)
    vocabulary = model.config.vocab_size
    choices = _choices(vocabulary, rounds)
    return asdict(OneTokenStep(num_bytes, median(copied), step_seconds, choices))


def _step_seconds(model: Any, rounds: int) -> float:
    """Of a step after others like it: behind a copy, it would wait until that is written."""
    steps, cache = Steps(model, 0, None, batch_size=1), RowCache(1, _CONTEXT + 1)

    def step() -> None:
        argmax_tokens(steps.take_empty(cache, _CONTEXT, (1,)), [slice(1)])

    with served(model, exact=False):
        [seconds] = _medians([step], rounds)
    return seconds


def _choices(vocabulary: int, rounds: int) -> dict[str, float]:
    generator = torch.Generator().manual_seed(0)
    # A model's logits spread about so far.
    logits = _LOGITS_DEVIATION * torch.randn(vocabulary, generator=generator)
    ids = torch.randint(vocabulary, (_CONTEXT,), generator=generator).tolist()
    choosers = [
        TokenChooser(LogitsProcessorList(processors()), do_sample)
        for do_sample, processors in _CHOICES.values()
    ]

    def choose(chooser: TokenChooser) -> None:
        ids.append(chooser.choose(ids, logits))

    seconds = _medians([partial(choose, chooser) for chooser in choosers], rounds)
    return dict(zip(_CHOICES, seconds, strict=True))


def _medians(actions: list[Callable[[], None]], rounds: int) -> list[float]:
    """Median seconds of each action, in turn with the others, after two warm-ups."""
    seconds: list[list[float]] = [[] for _ in actions]
    for _ in range(2 + rounds):
        for action, of_action in zip(actions, seconds, strict=True):
            started = perf_counter()
            action()
            of_action.append(perf_counter() - started)
    return [median(of_action[2:]) for of_action in seconds]


def render(figures: dict[str, Any]) -> str:
    """The figures in sentences."""
    step = OneTokenStep(**figures)
    reading = step.reading_seconds
    fastest = min(step.step_seconds.values())
    steps = "; ".join(
        f"`{name}` {1e3 * seconds:.1f} ms, of which {1 - reading / seconds:.0%} is not reading"
        for name, seconds in step.step_seconds.items()
    )
    choices = "; ".join(
        f"{name} {1e3 * seconds:.2f} ms, {seconds / fastest:.1%}"
        for name, seconds in step.choice_seconds.items()
    )
    return (
        f"A step of one token after {_CONTEXT}: {steps}. Reading {step.weight_bytes / 1e9:.3f} GB "
        f"of weights takes {1e3 * reading:.1f} ms at the bandwidth of a copy of as much "
        f"({1e3 * step.copy_seconds:.1f} ms, read and written).\n\n"
        f"Choosing a token, and its share of the fastest step: {choices}.\n"
    )
