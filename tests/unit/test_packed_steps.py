"""Steps of unlike widths in one forward, each as if it were alone; and the clock of steps."""

from collections import defaultdict
from typing import Any

import pytest
import torch
from asking import SUFFIX, asked, engine
from doubles import OracleDrafter
from steps import exact_mode_of
from tiny_models import VOCABULARY, tiny_model

from copyspec_eval.decoding import kernels, repeated_steps
from copyspec_eval.decoding.cache import RowCache
from copyspec_eval.decoding.forward import Part, forward, place
from copyspec_eval.decoding.prefix_cache import PrefixCache
from copyspec_eval.drafters.base import NoDrafter
from copyspec_eval.drafters.thresholds import StepClock

Packed = list[list[int]]


def tokens(row: int, length: int) -> list[int]:
    return [(7 * row + 5 * place + place**2) % VOCABULARY for place in range(length)]


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
    if kernels.is_available(torch.float32):
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

    def watched(model: Any, cache: Any, parts: list[Part], **kwargs: Any) -> torch.Tensor:
        if len(parts) > 1:
            packed.append([len(part.token_ids) for part in parts])
        return forward(model, cache, parts, **kwargs)

    monkeypatch.setattr(repeated_steps, "_records", lambda model: False)
    monkeypatch.setattr(repeated_steps, "forward", watched)
    return packed


@pytest.mark.parametrize("batch_size", [1, 3])
def test_an_engine_tells_its_clock_what_is_in_every_step(batch_size: int) -> None:
    """The rows, and all their draft tokens together; and asks it for the threshold at each."""
    noted: list[tuple[int, int]] = []

    class Clock(StepClock):
        def add(self, num_rows: int, num_drafted: int, seconds: float) -> None:
            assert seconds > 0
            noted.append((num_rows, num_drafted))

        def threshold(self, num_rows: int) -> float:
            assert 1 <= num_rows <= batch_size
            return super().threshold(num_rows)

    model, prompts = tiny_model("qwen2"), [[5, 6, 7] * 20, [5, 6] * 20, [9] * 30][:batch_size]
    for cost, has_drafts in ((0.0, True), (1e6, False)):
        how: Any = {"num_draft_tokens": 8, "step_clock": Clock(cost), "batch_size": batch_size}
        made = engine(model, SUFFIX, **how)
        for _ in range(6):  # until no step is recorded or checked, which takes longer
            noted.clear()
            answers = made.generate(asked(prompts, 30))
        drafted = sum(attempt.num_drafted for answer in answers for attempt in answer.attempts)
        steps = sum((answer.counts.num_forwards or 0) - 1 for answer in answers)
        assert bool(drafted) == has_drafts
        prefilled = sum(answer.attempts[0].num_drafted for answer in answers if answer.attempts)
        assert sum(rows for rows, _ in noted) == steps
        assert drafted - prefilled <= sum(tokens for _, tokens in noted) <= drafted
        assert all(attempt.num_drafted <= 8 for each in answers for attempt in each.attempts)


def test_padding_follows_the_last_node_of_a_tree() -> None:
    model, cache = tiny_model("llama"), RowCache(num_rows=1, capacity=64)
    tree = Part(0, 10, [5, 6, 7, 8, 9, 9], parents=(-1, 0, -1), num_before=2)
    step = place(model, cache, [tree], 64)
    assert step.positions.tolist() == [[10, 11, 12, 13, 12, 13]]
    sees = step.visible[0, 0, :, 10:16].int().tolist()
    assert sees[3:] == [[1, 1, 1, 1, 0, 0], [1, 1, 0, 0, 1, 0], [1, 1, 0, 0, 1, 1]]
