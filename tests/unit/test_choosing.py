"""Sampling keeps the target's distribution, whatever is drafted."""

import itertools
import math
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
COOLER = hf.TemperatureLogitsWarper(0.7)

# The model: logits of the next token given the last one.
TABLE = torch.randn(VOCABULARY, VOCABULARY, generator=torch.Generator().manual_seed(3))


def sample(warpers, draft, seed):
    sequence = Sequence([0], StopRule(LENGTH), sampling(*warpers, seed=seed))
    fixed = dict.fromkeys(("start", "observe", "finish"), lambda *given: None)
    sequence.start(SimpleNamespace(propose=lambda most, *_: Draft(draft[:most]), **fixed))
    sequence.commit(Draft(), sequence.choices(Draft(), [], TABLE[:1]))
    while sequence.finish_reason is None:
        drafted = sequence.propose(LENGTH, 0.0)
        fed = [*sequence.unread_ids, *drafted.token_ids]
        sequence.commit(drafted, sequence.choices(drafted, [], TABLE[fed]))
    return tuple(sequence.output_ids)


def target(warpers):
    """The exact probability of every sequence of `LENGTH` tokens."""
    prefixes: Any = torch.arange(VOCABULARY)[:, None]
    scores = hf.LogitsProcessorList(warpers)(prefixes, TABLE.clone())
    table = torch.softmax(scores.double(), -1).tolist()
    sequences = itertools.product(range(VOCABULARY), repeat=LENGTH)
    return {(a, b, c): table[0][a] * table[a][b] * table[b][c] for a, b, c in sequences}


@pytest.mark.parametrize(
    ("warpers", "draft"),
    [
        ([COOLER], ()),
        ([COOLER], (4, 4, 4)),
        ([hf.TemperatureLogitsWarper(1.3), hf.TopPLogitsWarper(0.8)], (1, 2)),
        ([hf.TopKLogitsWarper(3)], (4, 4, 4)),
    ],
)
def test_sampled_distribution_is_the_targets(warpers, draft):
    """Chi-square at level 1e-4; the seeds are fixed, so the outcome is too."""
    probabilities = target(warpers)
    counts = Counter(sample(warpers, draft, seed) for seed in range(SAMPLES))
    assert all(probabilities[sequence] > 0 for sequence in counts), "an impossible token"
    # Rare sequences share one cell, so that every cell expects at least five.
    cells = {each: p for each, p in probabilities.items() if p * SAMPLES >= 5}
    observed = [counts[each] for each in cells]
    wanted = [p * SAMPLES for p in cells.values()]
    if SAMPLES - sum(wanted) > 1e-6:
        observed.append(SAMPLES - sum(observed))
        wanted.append(SAMPLES - sum(wanted))
    assert chisquare(observed, wanted).pvalue > 1e-4


def margin_of(chooser, logits, token):
    chooser.restart(position=2)
    return chooser.margin([0, 1], logits, token)


MARGINS = [
    # Temperature changes the scores; the margin stays one of logits.
    (hf.TemperatureLogitsWarper(1.0), [1.0, 3.5, -2.0, 3.0], [2.5, 0.0, 5.5, 0.5]),
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
    warpers=st.sampled_from([[], [COOLER]]),
    drawn=st.booleans(),
)
def test_noise_under_half_the_margin_never_changes_a_choice(logits, token, seed, warpers, drawn):
    """The claim that near-ties rest on, for filters that keep every token or only drop some."""
    chooser = sampling(*warpers, seed=seed) if drawn else greedy(*warpers)
    tensor = torch.tensor(logits)
    margin = margin_of(chooser, tensor, token)
    assert margin is not None
    generator = torch.Generator().manual_seed(seed)
    for _ in range(20 if margin > 1e-4 else 0):
        noise = (torch.rand(len(logits), generator=generator) * 2 - 1) * margin / 2 * 0.99
        chooser.restart(position=2)
        assert chooser.choose([0, 1], tensor + noise) != token


def test_random_numbers_go_by_the_position():
    flat, chooser = torch.zeros(100), sampling(seed=4)
    smaller, larger = flat[:60], torch.cat([flat, torch.full((28,), -math.inf)])
    chosen = [chooser.choose([0], flat) for _ in range(20)]
    assert sum(token < 60 for token in {*chosen}) > 3
    for position, token in reversed([*enumerate(chosen)][1:]):
        for ahead in (1, 0):
            chooser.restart(position - ahead)
            assert chooser.peek([0], larger, ahead) == token
            assert token >= 60 or chooser.peek([0], smaller, ahead) == token
        assert chooser.choose([0], flat) == token, "looking ahead uses none up"


scores = st.floats(-20, 20, width=32) | st.just(-math.inf)
numbers = st.floats(2.0**-53, 1 - 2.0**-53)


@given(st.lists(st.tuples(scores, numbers), min_size=1, max_size=50))
def test_the_largest_sum_wins(tokens):
    values, uniform = map(numpy.array, zip(*tokens, strict=True))
    values[0] = 0.0  # one token at least is possible
    sums = values - numpy.log(-numpy.log(uniform))
    assert gumbel_max(values.astype(numpy.float32), uniform) == int(sums.argmax())
