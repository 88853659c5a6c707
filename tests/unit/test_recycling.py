"""What the model held for likely is drafted again, in the places that copies leave."""

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

THRESHOLDS = (0.002,) * 40
RECYCLE = DraftOptions("suffix", tree=True, recycle=True)
tokens = st.integers(0, 4)
rows = st.lists(tokens, min_size=3, max_size=3, unique=True)


def recycling(successors: Successors | None = None) -> SuffixDrafter:
    return SuffixDrafter(tree=True, successors={} if successors is None else successors)


def branches(draft: Draft) -> list[tuple[int, ...]]:
    actual: list[tuple[int, ...]] = []
    for token, parent in zip(draft.token_ids, draft.parents or (), strict=True):
        actual.append((*(actual[parent] if parent >= 0 else ()), token))
    return actual


def test_a_tree_is_made_of_successors_and_runners_up() -> None:
    successors: Successors = {}
    drafter = recycling(successors)
    drafter.start([1, 2, 3])
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


def test_a_later_observation_replaces_an_earlier_one_and_an_accepted_token_a_rejected() -> None:
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


def test_copies_and_recycled_tokens_share_a_tree() -> None:
    drafter = recycling()
    drafter.start([1, 2, 3, 4, 5, 1, 2])
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
    copied = branches(plain.propose(100, THRESHOLDS))
    assert {*copied[:3]} <= sources.keys()


@given(
    prompt=st.lists(tokens, min_size=1, max_size=20),
    answer=st.lists(tokens, min_size=1, max_size=30),
    held=st.lists(rows, min_size=5, max_size=5),
    most=st.integers(0, 12),
    threshold=st.sampled_from([0.0006, 0.02, 0.2]),
)
def test_every_draft_is_a_tree_within_its_limits(
    prompt: list[int], answer: list[int], held: list[list[int]], most: int, threshold: float
) -> None:
    """The model holds tokens for likely by the last one alone, and chooses as it likes."""
    drafter, last = recycling(), prompt[-1]
    drafter.start(prompt)
    while answer:
        draft = drafter.propose(most, (threshold,) * 20)
        check_tree(draft, most)
        likeliest = [held[token] for token in (last, *draft.token_ids)]
        verdict = replace(verdict_on(draft, answer), likeliest=likeliest)
        taken, answer = answer[: verdict.num_accepted + 1], answer[verdict.num_accepted + 1 :]
        drafter.observe(taken, verdict)
        last = taken[-1]


def check_tree(draft: Draft, most: int) -> None:
    parents = draft.parents or ()
    assert len(draft.token_ids) == len(parents) == len(draft.positions) <= most
    assert all(-1 <= parent < node for node, parent in enumerate(parents))
    pairs = [*zip(parents, draft.token_ids, strict=True)]
    assert len({*pairs}) == len(pairs), "no two siblings are alike"
    assert [*draft.probabilities] == sorted(draft.probabilities, reverse=True)
    assert all(0 < probability < 1 for probability in draft.probabilities)


def test_drafters_of_a_run_share_what_they_saw() -> None:
    make_drafter = drafter_factory(RECYCLE)
    first, second = make_drafter(), make_drafter()
    first.start([1, 2])
    first.observe([3], Verdict(0, 3, likeliest=[(3, 4, 5)]))
    second.start([7, 2])
    assert second.propose(100, THRESHOLDS).token_ids[0] == 3
    other = drafter_factory(RECYCLE)()
    other.start([7, 2])
    assert other.propose(100, THRESHOLDS) == Draft()


def test_a_draft_models_chain_is_learned_from() -> None:
    """Its tokens are not the drafter's own: those that were accepted are known all the same."""
    successors: Successors = {}
    drafter = recycling(successors)
    drafter.start([1])
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
def test_without_a_tree_nothing_is_recycled(options: DraftOptions, message: str) -> None:
    with pytest.raises(OptionError, match=f"^recycle{message}"):
        drafter_factory(options)
    with pytest.raises(OptionError, match="recycle must be true or false, got 1"):
        DraftOptions("suffix", tree=True, recycle=1)  # type: ignore[arg-type]
    assert RECYCLE.label == "suffix + tree + recycle"


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_the_likeliest_tokens_are_those_of_the_largest_logits(dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(7, 50, generator=generator).to(dtype)
    parts = [slice(0, 2), slice(3, 6)]
    one, two = top_tokens(logits, parts, num_likeliest=8)
    for likeliest, row in zip(one.likeliest + two.likeliest, logits[[0, 1, 3, 4, 5]], strict=True):
        assert len({*likeliest}) == 8
        assert row[likeliest].tolist() == row.sort(descending=True).values[:8].tolist()
    assert [one.argmax, two.argmax] == argmax_tokens(logits, parts)
    [few] = top_tokens(logits[:, :3], [slice(0, 2)], num_likeliest=8)
    assert [*map(len, few.likeliest)] == [3, 3]


def test_only_recycling_asks_for_likeliest_tokens() -> None:
    for drafter in (NoDrafter(), CopySpecDrafter(3, 10), SuffixDrafter(tree=True)):
        assert getattr(drafter, "num_likeliest", 0) == 0
    assert recycling().num_likeliest == NUM_LIKELIEST
