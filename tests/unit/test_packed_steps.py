"""Steps of unlike widths in one forward, each as if it were alone; and what a step costs."""

from collections import defaultdict
from itertools import accumulate
from typing import Any

import pytest
import torch
from asking import SUFFIX, asked, engine
from doubles import OracleDrafter
from hypothesis import given
from hypothesis import strategies as st
from steps import exact_mode_of
from tiny_models import VOCABULARY, tiny_model

from copyspec_eval.decoding import kernels, row_runner
from copyspec_eval.decoding.forward import Part, forward
from copyspec_eval.decoding.prefix_cache import PrefixCache
from copyspec_eval.decoding.step_costs import step_costs
from copyspec_eval.drafters.base import NoDrafter
from copyspec_eval.drafters.thresholds import acceptance_thresholds, allocate_draft_tokens
from copyspec_eval.types import Draft

Packed = list[list[int]]


def tokens(row: int, length: int) -> list[int]:
    return [(7 * row + 5 * place + place**2) % VOCABULARY for place in range(length)]


chains = st.lists(st.floats(0.01, 1), max_size=12).map(lambda p: sorted(p, reverse=True))


@given(
    st.lists(chains, min_size=1, max_size=5),
    st.lists(st.floats(0, 0.5), min_size=1, max_size=30),
    st.integers(0, 40),
)
def test_drafts_share_what_pays(rows: list[list[float]], slopes: list[float], most: int) -> None:
    """No other number of the likeliest tokens gives more, less what it costs."""
    prices = [0.0, *accumulate(slopes)]
    drafts = [Draft(tuple(range(len(p))), probabilities=tuple(p)) for p in rows]
    cut = allocate_draft_tokens(drafts, prices, most)
    remaining = sorted((p for draft in cut for p in draft.probabilities), reverse=True)
    likeliest = sorted((p for row in rows for p in row), reverse=True)
    assert remaining == likeliest[: len(remaining)]

    def worth(count: int) -> float:
        return sum(likeliest[:count]) - prices[count]

    counts = range(min(len(likeliest), most, len(slopes)) + 1)
    assert worth(len(remaining)) == pytest.approx(max(map(worth, counts)), abs=1e-9)


def test_a_draft_without_probabilities_is_cut_only_where_there_is_no_room() -> None:
    drafts = [Draft((1, 2, 3)), Draft(), Draft((4, 5))]
    assert allocate_draft_tokens(drafts, [0.0] * 6, most_tokens=5) == drafts
    cut = allocate_draft_tokens(drafts, [0.0] * 6, most_tokens=3)
    assert [draft.token_ids for draft in cut] == [(1, 2), (), (4,)]


@pytest.mark.parametrize("exact", [True, False])
def test_a_long_draft_does_not_widen_the_rows_beside_it(exact: bool, packed: Packed) -> None:
    """Of four rows one copies: the others are fed a token each, and all answers are right."""
    model = tiny_model("qwen2")
    mode = exact_mode_of(model, 4) if exact else None
    packed.clear()
    ids = [tuple(tokens(row, 9)) for row in range(4)]
    plain = engine(model).generate(asked(ids, 30))
    assert not packed
    answers = defaultdict(tuple, {ids[2]: plain[2].token_ids})
    drafting = engine(model, lambda: OracleDrafter(answers, VOCABULARY), mode, 20, batch_size=4)
    drafted = drafting.generate(asked(ids, 30))
    assert [one.token_ids for one in drafted] == [one.token_ids for one in plain]
    if kernels.is_available():
        assert {length for lengths in packed[1:] for length in lengths[:2]} == {1}
        assert max(lengths[2] for lengths in packed[1:]) >= 9


@pytest.mark.parametrize("exact", [True, False])
def test_what_is_left_of_short_prompts_is_read_together(exact: bool, packed: Packed) -> None:
    model, shared, left = tiny_model("qwen2"), tokens(0, 40), (5, 3, 7, 25, 1)
    ids = [[*shared, *tokens(row, length)] for row, length in enumerate(left)]
    plain = engine(model).generate(asked(ids, 8))
    mode = exact_mode_of(model, 5) if exact else None
    made = engine(model, NoDrafter, mode, 20, batch_size=5, prefix_cache=PrefixCache(2**20))
    packed.clear()
    together = made.generate(asked(ids, 8))
    assert [one.token_ids for one in together] == [one.token_ids for one in plain]
    assert [one.counts.num_forwards for one in together] == [8] * 5
    assert all(one.counts.prefill_seconds for one in together)
    if mode is None or mode.width is None:
        assert [one.counts.num_reused_tokens for one in together] == [0, 32, 32, 32, 32]
        # 32 of the 40 are kept, by blocks of 16.
        assert packed[0] == [8 + left[1], 8 + left[2], 8 + left[4]]
        assert all({*lengths} == {1} for lengths in packed[1:])


@pytest.fixture
def packed(monkeypatch: pytest.MonkeyPatch) -> Packed:
    """Tokens of each part of the forwards of several rows."""
    packed: Packed = []

    def watched(model: Any, cache: Any, parts: list[Part], *args: Any) -> torch.Tensor:
        if len(parts) > 1:
            packed.append([len(part.token_ids) for part in parts])
        return forward(model, cache, parts, *args)

    monkeypatch.setattr(row_runner, "forward", watched)
    return packed


@pytest.mark.parametrize(
    ("model_type", "batch_size", "longest", "ends"),
    [
        ("gemma2", 1, 20, [0, 1, 3, 7, 15, 20]),
        ("gemma2", 3, 20, [0, 1, 3, 7, 15, 31, 60]),  # draft tokens of all rows
        ("gpt2", 1, 600, [127, 600]),  # wider than there are positions
    ],
)
def test_every_doubled_number_and_the_most_are_measured(
    model_type: str, batch_size: int, longest: int, ends: list[int]
) -> None:
    costs = step_costs(tiny_model(model_type), batch_size, longest, None, "copyspec")
    assert list(costs)[-len(ends) :] == ends
    assert costs[0] > 0
    assert len(acceptance_thresholds(costs)) == ends[-1]


def test_costs_of_longer_drafts_lengthen_none() -> None:
    made = engine(tiny_model("qwen2"), SUFFIX, num_draft_tokens=8, step_costs={0: 1.0, 64: 1.0})
    [answer] = made.generate(asked([[5, 6, 7] * 20], 30))
    assert max(attempt.num_drafted for attempt in answer.attempts) == 8
