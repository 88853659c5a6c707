"""The paper's drafter against a plain definition, and what the model held for likely."""

from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch
from doubles import verdict_on
from hypothesis import given
from hypothesis import strategies as st

from copyspec_eval.decoding.choosing import argmax_tokens, top_tokens
from copyspec_eval.drafters.base import NoDrafter
from copyspec_eval.drafters.copyspec import CopySpecDrafter
from copyspec_eval.drafters.recycling import NUM_LIKELIEST, Recycler, Successors
from copyspec_eval.drafters.registry import drafter_factory
from copyspec_eval.drafters.suffix import SuffixDrafter
from copyspec_eval.errors import OptionError
from copyspec_eval.types import Draft, DraftOptions, Verdict

FREE = [0.0] * 100
few_tokens = st.lists(st.integers(0, 2), max_size=40)


def by_definition(text: Sequence[int], gamma: int, count: int) -> list[int]:
    """What follows the first earlier occurrence of the last `gamma` tokens."""
    for start in range(len(text) - gamma):
        if list(text[start : start + gamma]) == list(text[len(text) - gamma :]):
            return list(text[start + gamma : start + gamma + count])
    return []


@given(few_tokens, st.lists(few_tokens, max_size=5), st.integers(1, 4), st.integers(1, 12))
def test_copies_what_followed_the_first_occurrence(prompt, chunks, gamma, count):
    drafter = CopySpecDrafter(gamma, count)
    drafter.start(prompt)
    assert not drafter.propose(100, FREE).token_ids, "no draft in the prefill"
    drafter.observe([], Verdict(0, 0))
    text = list(prompt)
    for chunk in [*chunks, []]:
        draft = drafter.propose(100, FREE)
        copied = by_definition(text, gamma, count)
        assert list(draft.token_ids) == copied
        assert not copied or text[draft.position : draft.position + len(copied)] == copied
        drafter.observe(chunk, Verdict(0, 0))
        text += chunk


@pytest.mark.parametrize(
    ("gamma", "count", "prompt", "max_tokens", "draft"),
    [
        # The first occurrence wins over later ones; a run of one token copies itself.
        (2, 10, [1, 2, 7, 1, 2, 8, 1, 2], 100, Draft((7, 1, 2, 8, 1, 2), position=2)),
        (3, 10, [9] * 6, 100, Draft((9, 9, 9), position=3)),
        # Nothing is looked up when fewer than gamma tokens may be generated.
        (3, 10, [1, 2, 3, 4, 5, 1, 2, 3], 2, Draft((4, 5), position=3)),
        (3, 10, [1, 2, 3, 4, 5, 1, 2, 3], 1, Draft()),
        # It may copy nothing.
        (1, 0, [5, 6, 5, 6], 100, Draft(position=2)),
    ],
)
def test_drafts_by_hand(gamma, count, prompt, max_tokens, draft):
    drafter = drafter_factory(DraftOptions("copyspec", gamma=gamma, num_draft_tokens=count))()
    drafter.start(prompt)
    drafter.observe([], Verdict(0, 0))
    assert drafter.propose(max_tokens, FREE) == draft


@pytest.mark.parametrize("value", [0, -1, "x", 2.5, True])
@pytest.mark.parametrize("name", ["gamma", "num_draft_tokens"])
def test_options_out_of_range_are_named(name, value):
    with pytest.raises(
        OptionError, match=f"{name} must be an integer of at least 1 .*got {value!r}"
    ):
        DraftOptions("suffix", **{name: value})
    with pytest.raises(OptionError, match=r"num_draft_tokens must be .* at least 0 .*got -1"):
        DraftOptions("copyspec", num_draft_tokens=-1)
    with pytest.raises(OptionError, match="recycle must be true or false, got 1"):
        DraftOptions("suffix", tree=True, recycle=1)  # type: ignore[arg-type]


THRESHOLDS = (0.002,) * 40
RECYCLE = DraftOptions("suffix", tree=True, recycle=True)
tokens = st.integers(0, 4)
rows = st.lists(tokens, min_size=3, max_size=3, unique=True)


def recycling(prompt: Sequence[int], successors: Successors | None = None) -> SuffixDrafter:
    drafter = SuffixDrafter(tree=True, successors={} if successors is None else successors)
    drafter.start(prompt)
    return drafter


def branches(draft: Draft) -> list[tuple[int, ...]]:
    actual: list[tuple[int, ...]] = []
    for token, parent in zip(draft.token_ids, draft.parents or (), strict=True):
        actual.append((*(actual[parent] if parent >= 0 else ()), token))
    return actual


def test_a_tree_is_made_of_successors_and_runners_up():
    successors: Successors = {}
    drafter = recycling([1, 2, 3], successors)
    assert drafter.propose(100, THRESHOLDS) == Draft(), "nothing is known yet"
    # After 3 the model held 4, 5 and 6 for likeliest, and chose 4.
    drafter.observe([4], Verdict(0, 4, likeliest=[(4, 5, 6)]))
    draft = drafter.propose(100, THRESHOLDS)
    assert branches(draft) == [(5,), (6,)], "of 4 nothing is known, but its runners-up"
    assert draft.source == "recycled"
    # Both were wrong: after 4 it chose 7. What it held for likely behind 5 and 6 is known, too.
    drafter.observe([7], Verdict(0, 7, path=(), likeliest=[(7, 9, 5), (3, 2, 8), (1, 2, 3)]))
    draft = drafter.propose(100, THRESHOLDS)
    assert {draft.source_of(node) for node in range(len(draft.token_ids))} == {"recycled"}
    actual = branches(draft)
    assert actual[:2] == [(9,), (5,)], "runners-up of 7"
    assert {(5, 3), (5, 3, 4), (5, 2), (5, 3, 4, 7)} <= {*actual}
    assert successors[5] == (3, 2, 8)


def test_a_later_observation_replaces_an_earlier_one_and_an_accepted_token_a_rejected():
    successors: Successors = {}
    recycler = Recycler(successors)
    recycler.start([1])
    # A branch 7 1, and one 1: 1 is read behind 7, where it was rejected, and accepted behind 1.
    verdict = Verdict(1, 6, path=(2,), likeliest=[(1, 7), (2, 3), (4, 5), (6, 8)])
    recycler.observe([7, 1, 1], verdict)
    assert [successors.get(token) for token in (1, 7, 6)] == [(6, 8), (2, 3), None]
    recycler.observe([], Verdict(0, 1, likeliest=[(1, 2)]))
    recycler.observe([], Verdict(0, 5, likeliest=[(3, 5)]))
    assert [successors[token] for token in (1, 6)] == [(3, 5), (1, 2)]


def test_copies_and_recycled_tokens_share_a_tree():
    drafter = recycling([1, 2, 3, 4, 5, 1, 2])
    drafter.observe([3], Verdict(0, 3, likeliest=[(3, 9, 8)]))
    drafter.observe([4], Verdict(0, 4, likeliest=[(6, 4, 7)]))
    draft = drafter.propose(100, THRESHOLDS)
    sources = dict(zip(branches(draft), map(draft.source_of, range(len(THRESHOLDS))), strict=False))
    assert sources[5,] == "context"
    assert sources[6,] == sources[7,] == "recycled", "runners-up"
    assert sources[5, 1, 2, 3] == "context"
    assert sources[5, 1, 2, 9] == "recycled", "2 was last followed by 3, 9 and 8"
    plain = SuffixDrafter(tree=True)
    plain.start([1, 2, 3, 4, 5, 1, 2, 3, 4])
    assert {*branches(plain.propose(100, THRESHOLDS))[:3]} <= sources.keys()


@given(
    prompt=st.lists(tokens, min_size=1, max_size=20),
    answer=st.lists(tokens, min_size=1, max_size=30),
    held=st.lists(rows, min_size=5, max_size=5),
    most=st.integers(0, 12),
    threshold=st.sampled_from([0.0006, 0.02, 0.2]),
)
def test_every_draft_is_a_tree_within_its_limits(prompt, answer, held, most, threshold):
    """The model holds tokens for likely by the last one alone, and chooses as it likes."""
    drafter, last = recycling(prompt), prompt[-1]
    while answer:
        draft = drafter.propose(most, (threshold,) * 20)
        parents = draft.parents or ()
        assert len(draft.token_ids) == len(parents) == len(draft.positions) <= most
        assert all(-1 <= parent < node for node, parent in enumerate(parents))
        assert len({*zip(parents, draft.token_ids, strict=True)}) == len(parents), "like siblings"
        assert [*draft.probabilities] == sorted(draft.probabilities, reverse=True)
        assert all(0 < probability < 1 for probability in draft.probabilities)
        likeliest = [held[token] for token in (last, *draft.token_ids)]
        verdict = replace(verdict_on(draft, answer), likeliest=likeliest)
        taken, answer = answer[: verdict.num_accepted + 1], answer[verdict.num_accepted + 1 :]
        drafter.observe(taken, verdict)
        last = taken[-1]


def test_drafters_of_a_run_share_what_they_saw():
    make_drafter = drafter_factory(RECYCLE)
    first, second, other = make_drafter(), make_drafter(), drafter_factory(RECYCLE)()
    first.start([1, 2])
    first.observe([3], Verdict(0, 3, likeliest=[(3, 4, 5)]))
    for drafter, drafted in ((second, (3,)), (other, ())):
        drafter.start([7, 2])
        assert drafter.propose(100, THRESHOLDS).token_ids[:1] == drafted


def test_a_draft_models_chain_is_learned_from():
    """Its tokens are not the drafter's own: those that were accepted are known all the same."""
    successors: Successors = {}
    drafter = recycling([1], successors)
    assert drafter.propose(100, THRESHOLDS) == Draft()
    held = [(2, 5), (3, 6), (4, 7), (0, 0)]
    drafter.observe([2, 3, 4], Verdict(2, 4, likeliest=held))  # of a draft 2 3 8
    assert [successors[token] for token in (1, 2, 3)] == held[:3]
    assert drafter.propose(100, THRESHOLDS).token_ids[0] == 7, "the runner-up of 4"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (DraftOptions("suffix", recycle=True), "=true fills trees; pass tree=true,exact=false"),
        (DraftOptions("none", recycle=True), "=true is not for drafter=none; pass drafter=suffix"),
        (DraftOptions("copyspec", recycle=True), "=true is not for drafter=copyspec; pass"),
    ],
)
def test_without_a_tree_nothing_is_recycled(options, message):
    assert RECYCLE.label == "suffix + tree + recycle"
    with pytest.raises(OptionError, match=f"^recycle{message}"):
        drafter_factory(options)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_the_likeliest_tokens_are_those_of_the_largest_logits(dtype):
    logits = torch.randn(7, 50, generator=torch.Generator().manual_seed(0)).to(dtype)
    parts = [slice(0, 2), slice(3, 6)]
    one, two = top_tokens(logits, parts, num_likeliest=8)
    for likeliest, row in zip(one.likeliest + two.likeliest, logits[[0, 1, 3, 4, 5]], strict=True):
        assert len({*likeliest}) == 8
        assert row[likeliest].tolist() == row.sort(descending=True).values[:8].tolist()
    assert [one.argmax, two.argmax] == argmax_tokens(logits, parts)
    [few] = top_tokens(logits[:, :3], [slice(0, 2)], num_likeliest=8)
    assert [*map(len, few.likeliest)] == [3, 3]


def test_only_recycling_asks_for_likeliest_tokens():
    for drafter in (NoDrafter(), CopySpecDrafter(3, 10), SuffixDrafter(tree=True)):
        assert getattr(drafter, "num_likeliest", 0) == 0
    assert recycling([]).num_likeliest == NUM_LIKELIEST
