"""The paper's drafter against a definition written down as plainly as possible."""

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from copyspec_eval.drafters.copyspec import CopySpecDrafter
from copyspec_eval.drafters.registry import DRAFTERS, drafter_factory
from copyspec_eval.errors import OptionError
from copyspec_eval.types import Draft, DraftOptions, Verdict

FREE = [0.0] * 100
NOTHING = Verdict(0, 0)
few_tokens = st.lists(st.integers(0, 2), max_size=40)


def by_definition(text: Sequence[int], gamma: int, count: int) -> list[int]:
    """What follows the first earlier occurrence of the last `gamma` tokens."""
    if len(text) < gamma:
        return []
    suffix = list(text[len(text) - gamma :])
    for start in range(len(text) - gamma):
        if list(text[start : start + gamma]) == suffix:
            return list(text[start + gamma : start + gamma + count])
    return []


@given(
    prompt=few_tokens,
    chunks=st.lists(few_tokens, max_size=5),
    gamma=st.integers(1, 4),
    count=st.integers(1, 12),
)
def test_copies_what_followed_the_first_occurrence(
    prompt: list[int], chunks: list[list[int]], gamma: int, count: int
) -> None:
    drafter = CopySpecDrafter(gamma, count)
    drafter.start(prompt)
    assert not drafter.propose(100, FREE).token_ids, "no draft in the prefill"
    drafter.observe([], NOTHING)
    text = list(prompt)
    for chunk in [*chunks, []]:
        draft = drafter.propose(100, FREE)
        assert list(draft.token_ids) == by_definition(text, gamma, count)
        if draft.token_ids:
            source = text[draft.position : draft.position + len(draft.token_ids)]
            assert source == list(draft.token_ids)
        drafter.observe(chunk, NOTHING)
        text += chunk


@pytest.mark.parametrize(
    ("gamma", "prompt", "max_tokens", "draft"),
    [
        # The first occurrence wins over later ones; a run of one token copies itself.
        (2, [1, 2, 7, 1, 2, 8, 1, 2], 100, Draft((7, 1, 2, 8, 1, 2), position=2)),
        (3, [9] * 6, 100, Draft((9, 9, 9), position=3)),
        # Nothing is looked up when fewer than gamma tokens may be generated.
        (3, [1, 2, 3, 4, 5, 1, 2, 3], 2, Draft((4, 5), position=3)),
        (3, [1, 2, 3, 4, 5, 1, 2, 3], 1, Draft()),
    ],
)
def test_drafts_by_hand(gamma: int, prompt: list[int], max_tokens: int, draft: Draft) -> None:
    drafter = CopySpecDrafter(gamma, num_draft_tokens=10)
    drafter.start(prompt)
    drafter.observe([], NOTHING)
    assert drafter.propose(max_tokens, FREE) == draft


@pytest.mark.parametrize("name", DRAFTERS)
@given(prompt=st.lists(st.integers(0, 3), min_size=1, max_size=30), limit=st.integers(0, 20))
def test_every_drafter_keeps_to_the_limit(name: str, prompt: list[int], limit: int) -> None:
    drafter = drafter_factory(DraftOptions(name))()
    drafter.start(prompt)
    drafter.observe([prompt[0]], NOTHING)
    assert len(drafter.propose(limit, FREE).token_ids) <= limit


@pytest.mark.parametrize("value", [0, -1, "x", 2.5, True])
@pytest.mark.parametrize("name", ["gamma", "num_draft_tokens"])
def test_options_out_of_range_are_named(name: str, value: object) -> None:
    message = f"{name} must be an integer of at least 1 .*got {value!r}"
    with pytest.raises(OptionError, match=message):
        DraftOptions("suffix", **{name: value})  # type: ignore[arg-type]


def test_the_papers_rule_may_copy_nothing() -> None:
    drafter = drafter_factory(DraftOptions("copyspec", gamma=1, num_draft_tokens=0))()
    drafter.start([5, 6, 5])
    drafter.observe([6], Verdict(0, 6))
    assert drafter.propose(100, FREE).token_ids == ()
    with pytest.raises(OptionError, match=r"num_draft_tokens must be .* at least 0 .*got -1"):
        DraftOptions("copyspec", num_draft_tokens=-1)
