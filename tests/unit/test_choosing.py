"""Sampling keeps the target's distribution, whatever is drafted."""

import itertools
import math
import random
from collections import Counter
from types import SimpleNamespace
from typing import Any

import numpy
import pytest
import torch
import transformers as hf
from asking import greedy, sampling
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import chisquare

from copyspec_eval.decoding.choosing import gumbel_max
from copyspec_eval.decoding.sequence import Sequence
from copyspec_eval.decoding.stopping import StopRule
from copyspec_eval.types import Draft

VOCABULARY, LENGTH, SAMPLES = 5, 3, 1500

WARPERS: dict[str, list[hf.LogitsProcessor]] = {
    "temperature": [hf.TemperatureLogitsWarper(0.7)],
    "top-p": [hf.TemperatureLogitsWarper(1.3), hf.TopPLogitsWarper(0.8)],
    "top-k": [hf.TopKLogitsWarper(3)],
}

# The model: logits of the next token given the last one.
TABLE = torch.randn(VOCABULARY, VOCABULARY, generator=torch.Generator().manual_seed(3))


def sample(name, draft, seed):
    sequence = Sequence([0], StopRule(LENGTH), sampling(*WARPERS[name], seed=seed))
    fixed = {name: lambda *given: None for name in ("start", "observe", "finish")}
    drafter = SimpleNamespace(propose=lambda most, _: Draft(draft[:most]), **fixed)
    sequence.start(drafter)
    sequence.commit(Draft(), sequence.choices(Draft(), [], TABLE[:1]))
    while sequence.finish_reason is None:
        drafted = sequence.propose([0.0] * LENGTH)
        fed = [*sequence.unread_ids, *drafted.token_ids]
        sequence.commit(drafted, sequence.choices(drafted, [], TABLE[fed]))
    return tuple(sequence.output_ids)


def target(name):
    """The exact probability of every sequence of `LENGTH` tokens."""
    prefixes: Any = torch.arange(VOCABULARY)[:, None]
    scores = hf.LogitsProcessorList(WARPERS[name])(prefixes, TABLE.clone())
    table = torch.softmax(scores.double(), -1).tolist()
    return {
        (a, b, c): table[0][a] * table[a][b] * table[b][c]
        for a, b, c in itertools.product(range(VOCABULARY), repeat=LENGTH)
    }


def chi_square_p(counts, probabilities):
    """Chance of counts at least this far from the probabilities."""
    # Rare sequences share one cell, so that every cell expects at least five.
    cells = {s: p for s, p in probabilities.items() if p * SAMPLES >= 5}
    observed = [counts[s] for s in cells] + [SAMPLES - sum(counts[s] for s in cells)]
    wanted = [p * SAMPLES for p in cells.values()] + [(1 - sum(cells.values())) * SAMPLES]
    pairs = [(o, w) for o, w in zip(observed, wanted, strict=True) if w > 1e-6]
    return float(chisquare(*zip(*pairs, strict=True)).pvalue)


@pytest.mark.parametrize("name", WARPERS)
def test_sampled_distribution_is_the_targets(name):
    """Chi-square at level 1e-4; the seeds are fixed, so the outcome is too."""
    probabilities = target(name)
    counts = Counter(sample(name, (1, 2), seed) for seed in range(SAMPLES))
    assert all(probabilities[sequence] > 0 for sequence in counts), "an impossible token"
    assert chi_square_p(counts, probabilities) > 1e-4


def margin_of(chooser, logits, token):
    chooser.restart(position=2)
    return chooser.margin([0, 1], logits, token)


MARGINS = [
    # Temperature changes the scores; the margin stays one of logits.
    (hf.TemperatureLogitsWarper(2.0), [1.0, 3.5, -2.0, 3.0], [2.5, 0.0, 5.5, 0.5]),
    # Token 1 is in the prefix: its 3.0 counts as 2.0. To reach token 2 it would have to be 3.75;
    # it takes less to lower token 2 to 2.0.
    (hf.RepetitionPenaltyLogitsProcessor(1.5), [-4.0, 3.0, 2.5], [2.5 * 1.5 + 4.0, 0.5, 0.0]),
    # No logits lead to a token that is suppressed.
    (hf.SuppressTokensLogitsProcessor([2]), [1.0, 0.0, 5.0], [0.0, 1.0, None]),
]


@pytest.mark.parametrize(("processor", "logits", "wanted"), MARGINS)
def test_greedy_margins_by_hand(processor, logits, wanted):
    actual = [margin_of(greedy(processor), torch.tensor(logits), n) for n in range(len(logits))]
    assert actual == pytest.approx(wanted, abs=1e-5)


@given(
    logits=st.lists(st.floats(-4, 4, width=32), min_size=3, max_size=8),
    token=st.integers(0, 2),
    seed=st.integers(0, 1000),
    warper=st.sampled_from(sorted(WARPERS)),
    sampled=st.booleans(),
)
def test_noise_under_half_the_margin_never_changes_a_choice(logits, token, seed, warper, sampled):
    """The claim that near-ties rest on, for filters that keep every token or only drop some."""
    warpers = WARPERS[warper] if warper == "temperature" else []
    chooser = sampling(*warpers, seed=seed) if sampled else greedy(*warpers)
    tensor = torch.tensor(logits)
    margin = margin_of(chooser, tensor, token)
    assert margin is not None
    generator = torch.Generator().manual_seed(seed)
    for _ in range(20 if margin > 1e-4 else 0):
        noise = (torch.rand(len(logits), generator=generator) * 2 - 1) * margin / 2 * 0.99
        chooser.restart(position=2)
        assert chooser.choose([0, 1], tensor + noise) != token


def test_a_choice_can_be_repeated_from_any_position():
    chooser = sampling(seed=9)
    logits = torch.zeros(1000)
    first = [chooser.choose([0], logits) for _ in range(5)]
    assert len(set(first)) > 3
    for position in (3, 0, 4):
        chooser.restart(position)
        assert chooser.choose([0], logits) == first[position]


scores = st.floats(-20, 20, width=32) | st.just(-math.inf)
numbers = st.floats(2.0**-53, 1 - 2.0**-53)


@given(st.lists(st.tuples(scores, numbers), min_size=1, max_size=50))
def test_the_largest_sum_is_found_among_the_candidates(tokens):
    values, uniform = map(numpy.array, zip(*tokens, strict=True))
    values[0] = 0.0  # one token at least is possible
    sums = values.astype(numpy.float64) - numpy.log(-numpy.log(uniform))
    assert gumbel_max(values.astype(numpy.float32), uniform) == int(sums.argmax())


def test_a_choice_goes_by_its_prefix_whatever_was_asked_before():
    source, logits = random.Random(0), torch.linspace(1, 1.1, 60)
    penalty, ids = hf.RepetitionPenaltyLogitsProcessor(1.5), [0]
    chooser = greedy(penalty)
    for _ in range(200):
        added = source.choices(range(60), k=source.randint(0, 20))
        ids = [*ids[: source.randint(1, len(ids))], *added]
        assert chooser.peek(ids, logits, 0) == greedy(penalty).peek(ids, logits, 0)


def test_another_model_uses_the_numbers_of_the_choice_to_come():
    """One of a larger or smaller vocabulary too, and looking ahead uses none up."""
    flat = torch.zeros(100)
    plain, chooser = sampling(seed=4), sampling(seed=4)
    chosen = [plain.choose([0], flat) for _ in range(20)]
    smaller = []
    for position in range(0, 20, 2):
        for ahead in (0, 1):
            smaller.append(chooser.peek([0], flat[:60], ahead))
            wider = torch.cat([flat, torch.full((28,), -math.inf)])
            assert chooser.peek([0], wider, ahead) == chosen[position + ahead]
        assert [chooser.choose([0], flat) for _ in range(2)] == chosen[position : position + 2]
    pairs = [(a, b) for a, b in zip(smaller, chosen, strict=True) if b < 60]
    assert len(pairs) > 5
    assert all(a == b for a, b in pairs)
