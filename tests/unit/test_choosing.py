"""Sampling keeps the target's distribution, whatever is drafted."""

from __future__ import annotations

import itertools
import math
import random
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from doubles import ScriptedDrafter
from transformers import (
    LogitsProcessor,
    LogitsProcessorList,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from copyspec_eval.decoding.choosing import TokenChooser
from copyspec_eval.decoding.row import Row
from copyspec_eval.decoding.stopping import StopRule
from copyspec_eval.decoding.verify import verify
from copyspec_eval.types import Draft, Verdict

VOCABULARY, LENGTH, SAMPLES = 5, 3, 6000

WARPERS: dict[str, list[LogitsProcessor]] = {
    "temperature": [TemperatureLogitsWarper(0.7)],
    "top-p": [TemperatureLogitsWarper(1.3), TopPLogitsWarper(0.8)],
    "top-k": [TopKLogitsWarper(3)],
}

# The model: logits of the next token given the last one.
TABLE = torch.randn(VOCABULARY, VOCABULARY, generator=torch.Generator().manual_seed(3))


class FixedDrafter(ScriptedDrafter):
    """Drafts the same likely and unlikely tokens each time."""

    def __init__(self, draft: tuple[int, ...]) -> None:
        self.draft = draft

    def start(self, prompt_ids):
        pass

    def observe(self, token_ids, verdict):
        pass

    def propose(self, max_tokens: int) -> Draft:
        return Draft(self.draft[:max_tokens])


def sample(processors: LogitsProcessorList, draft: tuple[int, ...], seed: int) -> tuple[int, ...]:
    chooser = TokenChooser(processors, do_sample=True, seed=seed)
    row = Row([0], FixedDrafter(draft), LENGTH, StopRule(LENGTH).reason)
    row.begin(chooser.choose([0], TABLE[0]))
    while row.finish_reason is None:
        prefix = [0, *row.output_ids]
        drafted = row.propose(LENGTH)

        def choose(index: int, prefix=prefix, drafted=drafted) -> int:
            text = prefix + list(drafted.token_ids[:index])
            return chooser.choose(text, TABLE[text[-1]])

        row.settle(drafted, choose)
    return tuple(row.output_ids)


def target(processors: LogitsProcessorList) -> dict[tuple[int, ...], float]:
    """The exact probability of every sequence of `LENGTH` tokens."""
    prefixes: Any = torch.arange(VOCABULARY)[:, None]
    scores: Any = processors(prefixes, TABLE.clone())
    table = torch.softmax(scores.double(), -1)
    probabilities = {}
    for sequence in itertools.product(range(VOCABULARY), repeat=LENGTH):
        path = zip((0, *sequence), sequence, strict=False)
        probabilities[sequence] = math.prod(float(table[last, token]) for last, token in path)
    return probabilities


def chi_square_p(
    counts: Counter[tuple[int, ...]], probabilities: dict[tuple[int, ...], float]
) -> float:
    """Chance of counts at least this far from the probabilities."""
    samples = sum(counts.values())
    # Rare sequences share one cell, so that every cell expects at least five.
    cells = {s: p for s, p in probabilities.items() if p * samples >= 5}
    observed = [counts[s] for s in cells] + [samples - sum(counts[s] for s in cells)]
    wanted = [p * samples for p in cells.values()] + [(1 - sum(cells.values())) * samples]
    pairs = [(o, w) for o, w in zip(observed, wanted, strict=True) if w > 1e-6]
    statistic = torch.tensor(sum((o - w) ** 2 / w for o, w in pairs))
    degrees = torch.tensor(len(pairs) - 1.0)
    return float(torch.special.gammaincc(degrees / 2, statistic / 2))


@pytest.mark.parametrize("draft", [(), (1, 2), (4, 4, 4)], ids=str)
@pytest.mark.parametrize("name", WARPERS)
def test_sampled_distribution_is_the_targets(name: str, draft: tuple[int, ...]) -> None:
    """Chi-square at level 1e-4; the seeds are fixed, so the outcome is too."""
    processors = LogitsProcessorList(WARPERS[name])
    probabilities = target(processors)
    counts = Counter(sample(processors, draft, seed) for seed in range(SAMPLES))
    assert all(probabilities[sequence] > 0 for sequence in counts), "an impossible token"
    assert chi_square_p(counts, probabilities) > 1e-4


def test_the_chi_square_sees_a_draft_accepted_too_often(monkeypatch: pytest.MonkeyPatch) -> None:
    """One wrong draft token in ten let through is far outside."""
    flips = random.Random(0)

    def lenient(draft_ids: Sequence[int], choose: Callable[[int], int]) -> Verdict:
        if draft_ids and flips.random() < 0.1:
            return Verdict(1, choose(1))
        return verify(draft_ids, choose)

    monkeypatch.setattr("copyspec_eval.decoding.row.verify", lenient)
    processors = LogitsProcessorList(WARPERS["temperature"])
    counts = Counter(sample(processors, (4, 4, 4), seed) for seed in range(SAMPLES))
    assert chi_square_p(counts, target(processors)) < 1e-4


@pytest.mark.parametrize("name", WARPERS)
def test_same_seed_gives_the_same_tokens_whatever_was_drafted(name: str) -> None:
    processors = LogitsProcessorList(WARPERS[name])
    for seed in range(50):
        plain = sample(processors, (), seed)
        assert sample(processors, (1, 2), seed) == plain
        assert sample(processors, plain[1:], seed) == plain


def test_a_draw_never_takes_an_impossible_token() -> None:
    scores = torch.tensor([-math.inf, 0.0, -math.inf, 0.0, -math.inf])
    chooser = TokenChooser(LogitsProcessorList(), do_sample=True, seed=1)
    assert {chooser.choose([0], scores) for _ in range(200)} == {1, 3}
