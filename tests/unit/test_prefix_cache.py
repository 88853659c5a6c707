"""Keys and values of earlier texts: the same bits, found by their beginnings, within a budget."""

from collections.abc import Sequence as Tokens
from itertools import takewhile
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from asking import asked as sequences_of
from asking import engine
from doubles import RecordingChooser
from hypothesis import given
from hypothesis import strategies as st
from steps import exact_mode_of
from timed_models import instances, rows
from tiny_models import larger_model
from ways import EXACT_WAYS, WAYS

from copyspec_eval.decoding.cache import RowCache
from copyspec_eval.decoding.engine import Engine
from copyspec_eval.decoding.prefix_cache import PrefixCache
from copyspec_eval.decoding.row_runner import PREFILL_CHUNK
from copyspec_eval.harness.lm import CopySpecLM
from copyspec_eval.types import ExactMode, Generation, TurnCounts

FIRST = tuple((5 * index * index + index) % 119 + 1 for index in range(70))
QUESTION = (9, 8, 7, 9, 8)
BUDGET = 40
LARGE = 2**30

tokens = st.lists(st.integers(0, 2), max_size=14)


def filled(token_ids: Tokens[int]) -> RowCache:
    """A cache whose only row has states that tell the whole text before each token."""
    cache = RowCache(1, 16)
    if token_ids:
        place = torch.arange(len(token_ids))
        cache.place(torch.zeros_like(place), place, len(token_ids))
        reported = [hash(tuple(token_ids[: end + 1])) % 2**20 for end in range(len(token_ids))]
        states = torch.tensor(reported, dtype=torch.float64).reshape(1, 1, -1, 1)
        cache.update(states, -states, 0)
    return cache


def check_states(cache: RowCache, text: Tokens[int], count: int) -> None:
    if count:
        [actual], [wanted] = (each.copy(0, 0, count, count) for each in (cache, filled(text)))
        assert actual.keys() == wanted.keys()
        assert all(torch.equal(actual[name][0], wanted[name][0]) for name in wanted)


@given(st.lists(tokens, max_size=12), tokens, st.integers(1, 4))
def test_the_longest_beginning_is_found(
    remaining: list[list[int]], asked: list[int], length: int
) -> None:
    prefix_cache = PrefixCache(LARGE)
    prefix_cache.begin("model", length)
    for text in remaining:
        prefix_cache.keep(text, filled(text), row=0)
    loaded = RowCache(1, 16)
    count = prefix_cache.load(asked, loaded, row=0)
    in_common = [
        len([*takewhile(lambda pair: pair[0] == pair[1], zip(text, asked, strict=False))])
        for text in remaining
    ]
    assert count == max(in_common, default=0) // length * length
    check_states(loaded, asked, count)


@given(st.lists(st.tuples(tokens, st.booleans()), max_size=20), st.integers(0, 200))
def test_the_budget_is_kept_soundly(texts: list[tuple[list[int], bool]], budget: int) -> None:
    """Two tokens of one layer, keys and values in float64, are 32 bytes."""
    prefix_cache = PrefixCache(budget)
    prefix_cache.begin("model", 2)
    for text, is_kept in texts:
        if is_kept:
            prefix_cache.keep(text, filled(text), row=0)
            room = min(len(text) // 2, budget // 32)
            assert prefix_cache.load(text, RowCache(1, 16), row=0) == 2 * room
        else:
            loaded = RowCache(1, 16)
            count = prefix_cache.load(text, loaded, row=0)
            check_states(loaded, text, count)
        held = sum(
            tensor.untyped_storage().nbytes()
            for block in prefix_cache._blocks.values()
            for tensor, _ in block.states.values()
        )
        assert prefix_cache.num_bytes == held <= budget


def test_what_was_used_least_recently_goes_first() -> None:
    prefix_cache = PrefixCache(3 * 32)
    prefix_cache.begin("model", 2)
    for text in ([1, 1, 5, 5], [2, 2]):
        prefix_cache.keep(text, filled(text), row=0)
    assert prefix_cache.load([1, 1], RowCache(1, 16), 0) == 2
    prefix_cache.keep([3, 3], filled([3, 3]), row=0)
    left = [
        text
        for text in ([1, 1], [1, 1, 5, 5], [2, 2], [3, 3])
        if prefix_cache.load(text, RowCache(1, 16), 0) == len(text)
    ]
    assert left == [[1, 1], [2, 2], [3, 3]], "of a text, what stands later goes first"


def test_another_model_finds_nothing() -> None:
    prefix_cache = PrefixCache(LARGE)
    prefix_cache.begin("model", 2)
    prefix_cache.keep([1, 1], filled([1, 1]), row=0)
    prefix_cache.begin("model", 2)
    assert prefix_cache.load([1, 1], RowCache(1, 16), 0) == 2
    prefix_cache.begin("model, trained on", 2)
    assert prefix_cache.load([1, 1], RowCache(1, 16), 0) == 0
    assert prefix_cache.num_bytes == 0


def conversation(
    made: Engine, num_rows: int = 1
) -> list[tuple[Generation, dict[int, torch.Tensor]]]:
    prompts = [(*FIRST, *range(2, 2 + row)) for row in range(num_rows)]
    answered: list[tuple[Generation, dict[int, torch.Tensor]]] = []
    for _ in range(2):
        sequences = sequences_of(prompts, BUDGET, RecordingChooser)
        turn = made.generate(sequences)
        answered += zip(turn, (cast(Any, s.chooser).logits for s in sequences), strict=True)
        prompts = [
            (*ids, *answer.token_ids, *QUESTION) for ids, answer in zip(prompts, turn, strict=True)
        ]
    return answered


def mode_of(model: Any, batch_size: int, kind: str) -> ExactMode | None:
    if kind == "inexact":
        return None
    return exact_mode_of(model, batch_size) if kind == "invariant" else ExactMode(16)


@pytest.mark.parametrize("batch_size", [1, 3])
@pytest.mark.parametrize("kind", ["invariant", "fixed width", "inexact"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_every_drafter_gives_what_it_gives_without(
    dtype: torch.dtype, kind: str, batch_size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In exact mode every logit is the same bits; else, in float32, the tokens are the same."""
    monkeypatch.setattr("copyspec_eval.decoding.row_runner.PREFILL_CHUNK", 32)
    model = larger_model(dtype)
    exact = mode_of(model, batch_size, kind)
    is_fixed = exact is not None and exact.width is not None
    if exact is None and dtype != torch.float32:
        pytest.skip("near-ties are possible")
    for name, options in (WAYS if exact is None else EXACT_WAYS).items():
        without, with_it = (
            conversation(
                engine(model, options, exact, batch_size=batch_size, prefix_cache=cache), batch_size
            )
            for cache in (None, PrefixCache(LARGE))
        )
        for (answer, logits), (same, same_logits) in zip(without, with_it, strict=True):
            assert same.token_ids == answer.token_ids, name
            assert answer.counts.num_reused_tokens == 0
            for position in logits if exact else ():
                assert torch.equal(logits[position], same_logits[position]), (name, position)
        first, second = with_it[:batch_size], with_it[batch_size:]
        assert [turn.counts.num_reused_tokens for turn, _ in first] == [0, *[64] * (batch_size - 1)]
        for turn, _ in second:
            # The first turn's prompt; and its answer where that was read as a prompt would be.
            whole = (len(FIRST) if is_fixed else len(FIRST) + BUDGET - 1) // 32 * 32
            assert turn.counts.num_reused_tokens == whole, name


def answers(lm: Any, *texts: str) -> list[str]:
    requests = instances({"max_gen_toks": 50}, contexts=texts)
    answered: list[str] = lm.generate_until(requests, disable_tqdm=True)
    return answered


def lm_of(folder: Path, options: str) -> Any:
    return CopySpecLM.create_from_arg_string(f"pretrained={folder},{options}", {"device": "cpu"})


def reused(counts: TurnCounts) -> int:
    assert counts.num_reused_tokens is not None
    return counts.num_reused_tokens


SHARED = "Question: what is next? Answer: the next one. " * 8
"""370 bytes, each a token of the byte model; more than a chunk of a prefill."""


@pytest.mark.parametrize("options", ["", "exact=false", "drafter=none,dtype=bfloat16"])
def test_shared_examples_are_read_once(byte_model: Path, options: str) -> None:
    texts = [f"{SHARED}And {number}?" for number in range(3)]
    with_it, without = (lm_of(byte_model, f"{options},prefix_cache={n}") for n in ("1MB", 0))
    answered = answers(with_it, *texts)
    assert answered == answers(without, *texts)
    first, *others = [reused(row.counts) for row in rows(answered)]
    assert first == 0
    assert min(others) >= PREFILL_CHUNK
    [arm] = with_it._arms
    assert arm.prefix_cache is not None
    assert 0 < arm.prefix_cache.num_bytes <= 10**6
    assert answers(with_it, *texts) == answered
    assert with_it._spec(with_it.prepare(), arm, [], 1).drafting["prefix_cache"] == 10**6


def test_both_arms_of_a_pair_reuse_alike(byte_model: Path) -> None:
    paired = lm_of(byte_model, "paired=true")
    for _ in range(2):
        answered = answers(paired, SHARED, SHARED + "And?")
        for row in rows(answered):
            assert row.baseline is not None
            assert row.baseline.agreement == "identical"
            assert reused(row.counts) == reused(row.baseline.counts)
    assert reused(rows(answered)[0].counts) >= PREFILL_CHUNK


def test_what_other_weights_computed_is_not_used(byte_model: Path) -> None:
    ours, changed = lm_of(byte_model, ""), lm_of(byte_model, "prefix_cache=0")
    answers(ours, SHARED)
    with torch.no_grad():
        for weight in (*ours.model.parameters(), *changed.model.parameters()):
            weight.mul_(1.5)
    answered = answers(ours, SHARED)
    assert reused(rows(answered)[0].counts) == 0
    assert answered == answers(changed, SHARED)
