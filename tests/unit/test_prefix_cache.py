"""Keys and values of earlier texts: the same bits, found by their beginnings, within a budget."""

from collections.abc import Sequence as Tokens
from functools import partial
from pathlib import Path
from typing import Any, cast

import pytest
import torch
from asking import asked as sequences_of
from asking import engine
from doubles import RecordingChooser
from hypothesis import given, settings
from hypothesis import strategies as st
from steps import exact_mode_of
from timed_models import instances, rows
from tiny_models import larger_model
from ways import WAYS

from copyspec_eval.decoding.cache import RowCache
from copyspec_eval.decoding.engine import Engine
from copyspec_eval.decoding.prefix_cache import PrefixCache
from copyspec_eval.decoding.row_runner import PREFILL_CHUNK
from copyspec_eval.harness.lm import CopySpecLM
from copyspec_eval.types import ExactMode, Generation

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
        texts = [hash(tuple(token_ids[: end + 1])) % 2**20 for end in range(len(token_ids))]
        states = torch.tensor(texts, dtype=torch.float64).reshape(1, 1, -1, 1)
        cache.update(states, -states, 0)
    return cache


def cache_of(budget: int, length: int) -> PrefixCache:
    prefix_cache = PrefixCache(budget)
    prefix_cache.begin("model", length)
    return prefix_cache


def check_loaded(prefix_cache: PrefixCache, text: Tokens[int]) -> int:
    """The number of tokens that are loaded, with the right states."""
    cache = RowCache(1, 16)
    count = prefix_cache.load(text, cache, row=0)
    if count:
        [[actual]], [[wanted]] = (each.copy(0, 0, count, count) for each in (cache, filled(text)))
        assert actual[0] == wanted[0]
        assert torch.equal(actual[1], wanted[1])
    return count


def test_keys_and_values_keep_their_dtypes() -> None:
    """As under autocast, where a rotary embedding can leave keys wider than values."""
    dtypes = torch.float32, torch.bfloat16
    cache, loaded = RowCache(1, 16), RowCache(1, 16)
    for each in (cache, loaded):
        each.place(torch.zeros(4, dtype=torch.long), torch.arange(4), 4)
    keys, values = (torch.randn(1, 1, 4, 2).to(dtype) for dtype in dtypes)
    cache.update(keys, values, 0)
    prefix_cache = cache_of(LARGE, 2)
    prefix_cache.keep([5, 6, 7, 8], cache, row=0)
    assert prefix_cache.load([5, 6, 7, 8], loaded, row=0) == 4
    for part, wanted in zip(loaded.copy(0, 0, 4, 4)[0], (keys, values), strict=True):
        assert part[1].dtype == wanted.dtype
        assert torch.equal(part[1], wanted)


@settings(deadline=None)  # the first may compile kernels
@given(
    st.lists(st.tuples(tokens, st.booleans()), max_size=20),
    st.sampled_from([0, 31, 64, 150, LARGE]),
    st.integers(1, 4),
)
def test_the_longest_beginning_is_found_within_the_budget(
    texts: list[tuple[list[int], bool]], budget: int, length: int
) -> None:
    """A token of one layer, keys and values in float64, takes 16 bytes."""
    prefix_cache, remaining = cache_of(budget, length), [list[int]()]
    for text, is_kept in texts:
        if is_kept:
            prefix_cache.keep(text, filled(text), row=0)
            remaining.append(text)
        in_common = [n for n in range(len(text) + 1) if text[:n] in [t[:n] for t in remaining]]
        count, most = check_loaded(prefix_cache, text), in_common[-1] // length * length
        assert count == most if budget == LARGE else count <= most
        assert not is_kept or count == min(most, budget // 16 // length * length)
        assert prefix_cache.num_bytes <= budget


def test_what_was_used_least_recently_goes_first() -> None:
    prefix_cache = cache_of(3 * 32, 2)
    for text in ([2, 2], [1, 1, 5, 5]):
        prefix_cache.keep(text, filled(text), row=0)
    assert check_loaded(prefix_cache, [2, 2]) == 2
    prefix_cache.keep([3, 3], filled([3, 3]), row=0)
    texts = ([1, 1], [1, 1, 5, 5], [2, 2], [3, 3])
    left = [text for text in texts if check_loaded(prefix_cache, text) == len(text)]
    assert left == [[1, 1], [2, 2], [3, 3]], "of a text, what stands later goes first"


def conversation(made: Engine, num_rows: int) -> list[tuple[Generation, Any]]:
    prompts = [(*FIRST, *range(2, 2 + row)) for row in range(num_rows)]
    answered: list[tuple[Generation, Any]] = []
    for _ in range(2):
        sequences = sequences_of(prompts, BUDGET, RecordingChooser)
        turn = made.generate(sequences)
        answered += zip(turn, (cast(Any, s.chooser).logits for s in sequences), strict=True)
        answers = [answer.token_ids for answer in turn]
        prompts = [(*ids, *more, *QUESTION) for ids, more in zip(prompts, answers, strict=True)]
    return answered


@pytest.mark.parametrize("batch_size", [1, 3])
@pytest.mark.parametrize(
    ("kind", "dtype"),
    # Without exact mode, near-ties are possible in bfloat16.
    [("invariant", torch.bfloat16), ("fixed width", torch.float32), ("inexact", torch.float32)],
)
def test_a_conversation_goes_as_it_goes_without(
    kind: str, dtype: torch.dtype, batch_size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In exact mode every logit is the same bits; else, in float32, the tokens are the same."""
    for name in ("PREFILL_CHUNK", "_LONG_CHUNK"):
        monkeypatch.setattr(f"copyspec_eval.decoding.row_runner.{name}", 32)
    model = larger_model(dtype)
    exact = None if kind == "inexact" else ExactMode(16)
    exact = exact_mode_of(model, batch_size) if kind == "invariant" else exact
    is_fixed = exact is not None and exact.width is not None
    make = partial(engine, model, WAYS["suffix"], exact, batch_size=batch_size)
    caches = (None, PrefixCache(LARGE))
    without, with_it = (conversation(make(prefix_cache=each), batch_size) for each in caches)
    for (answer, logits), (same, same_logits) in zip(without, with_it, strict=True):
        assert same.token_ids == answer.token_ids
        assert answer.counts.num_reused_tokens == 0
        for position in logits if exact else ():
            assert torch.equal(logits[position], same_logits[position]), position
    num_reused = [turn.counts.num_reused_tokens for turn, _ in with_it]
    # The first turn's prompt; and its answer where that was read as a prompt would be.
    whole = (len(FIRST) if is_fixed else len(FIRST) + BUDGET - 1) // 32 * 32
    assert num_reused == [0, *[64] * (batch_size - 1), *[whole] * batch_size]


def answers(lm: Any, *texts: str) -> Any:
    requests = instances({"max_gen_toks": 50}, contexts=texts)
    return lm.generate_until(requests, disable_tqdm=True)


def lm_of(folder: Path, options: str) -> Any:
    return CopySpecLM.create_from_arg_string(f"pretrained={folder},{options}", {"device": "cpu"})


def reused(answered: list[str]) -> list[int]:
    return [row.counts.num_reused_tokens or 0 for row in rows(answered)]


SHARED = "Question: what is next? Answer: the next one. " * 8
"""370 bytes, each a token of the byte model; more than a chunk of a prefill."""


@pytest.mark.parametrize("options", ["", "exact=false", "drafter=none,dtype=bfloat16"])
def test_shared_examples_are_read_once(byte_model: Path, options: str) -> None:
    texts = [f"{SHARED}And {number}?" for number in range(3)]
    with_it, without = (lm_of(byte_model, f"{options},prefix_cache={n}") for n in ("1MB", 0))
    answered = answers(with_it, *texts)
    assert answered == answers(without, *texts)
    first, *others = reused(answered)
    assert first == 0 < PREFILL_CHUNK <= min(others)
    assert answers(with_it, *texts) == answered
    spec = with_it._spec(with_it.prepare(), with_it._arms[0], [], 1)
    assert spec.drafting["prefix_cache"] == 10**6


def test_both_arms_of_a_pair_reuse_alike(byte_model: Path) -> None:
    paired = lm_of(byte_model, "paired=true")
    for _ in range(2):
        answered = answers(paired, SHARED, SHARED + "And?")
        for row in rows(answered):
            assert row.baseline is not None
            assert row.baseline.agreement == "identical"
            assert row.counts.num_reused_tokens == row.baseline.counts.num_reused_tokens
    assert reused(answered)[0] >= PREFILL_CHUNK
