"""The paper's drafter against a plain definition, and what the model held for likely."""

from collections.abc import Sequence

import pytest
from doubles import verdict_on
from hypothesis import given
from hypothesis import strategies as st

from copyspec_eval.drafters.copyspec import CopySpecDrafter
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
    with pytest.raises(OptionError, match="tree must be true or false, got 1"):
        DraftOptions("suffix", tree=1)  # type: ignore[arg-type]


tokens = st.integers(0, 4)


@given(
    prompt=st.lists(tokens, min_size=1, max_size=20),
    answer=st.lists(tokens, min_size=1, max_size=30),
    most=st.integers(0, 12),
    threshold=st.sampled_from([0.0006, 0.02, 0.2]),
)
def test_every_draft_is_a_tree_within_its_limits(prompt, answer, most, threshold):
    drafter = SuffixDrafter(tree=True)
    drafter.start(prompt)
    while answer:
        draft = drafter.propose(most, (threshold,) * 20)
        parents = draft.parents or ()
        assert len(draft.token_ids) == len(parents) == len(draft.positions) <= most
        assert all(-1 <= parent < node for node, parent in enumerate(parents))
        assert len({*zip(parents, draft.token_ids, strict=True)}) == len(parents), "like siblings"
        assert [*draft.probabilities] == sorted(draft.probabilities, reverse=True)
        assert all(0 < probability < 1 for probability in draft.probabilities)
        verdict = verdict_on(draft, answer)
        taken, answer = answer[: verdict.num_accepted + 1], answer[verdict.num_accepted + 1 :]
        drafter.observe(taken, verdict)


def test_drafters_of_a_run_share_a_store():
    options = DraftOptions("suffix", store=True)
    make_drafter = drafter_factory(options)
    first, second, other = make_drafter(), make_drafter(), drafter_factory(options)()
    first.start([1])
    first.observe([7, 2, 3], Verdict(0, 7))
    first.finish()
    for drafter, drafted in ((second, (3,)), (other, ())):
        drafter.start([7, 2])
        assert drafter.propose(100, FREE).token_ids[:1] == drafted


@pytest.mark.parametrize("switch", ["store", "tree"])
@pytest.mark.parametrize("drafter", ["none", "copyspec"])
def test_a_switch_that_a_drafter_lacks_is_refused(drafter, switch):
    message = f"^{switch}=true is not for drafter={drafter}; pass drafter=suffix"
    with pytest.raises(OptionError, match=message):
        drafter_factory(DraftOptions(drafter, **{str(switch): True}))  # type: ignore[arg-type]
