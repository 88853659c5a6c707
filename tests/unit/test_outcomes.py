"""Guesses are corrected by what became of those before them, and long copies are worth little."""

import copy
from dataclasses import replace

import pytest
from doubles import verdict_on
from hypothesis import given
from hypothesis import strategies as st

from copyspec_eval.drafters import outcomes
from copyspec_eval.drafters.outcomes import Guess, Outcomes
from copyspec_eval.drafters.registry import drafter_factory
from copyspec_eval.drafters.suffix import SuffixDrafter
from copyspec_eval.drafters.thresholds import acceptance_thresholds, marginal_values
from copyspec_eval.types import Draft, DraftOptions, Verdict

THRESHOLDS = (0.02,) * 32
texts = st.lists(st.integers(0, 2), min_size=1, max_size=40)
estimates = st.floats(0.001, 0.999)
counts, long_counts = st.integers(1, 50), st.integers(1, 200)
kinds, recycled = st.sampled_from(["context", "store"]), st.sampled_from(["successor", "runner-up"])
guesses = (
    st.builds(outcomes.guess_counted, kinds, long_counts, counts, counts, estimates)
    | st.builds(outcomes.guess_resumed, long_counts, estimates)
    | st.builds(outcomes.guess_recycled, recycled, st.integers(0, 9), estimates)
)


class Watched(Outcomes):
    def __init__(self) -> None:
        super().__init__()
        self.observed: list[tuple[Guess, bool]] = []

    def observe(self, guess: Guess, followed: bool) -> None:
        self.observed.append((guess, followed))
        super().observe(guess, followed)


@given(st.lists(st.tuples(guesses, st.booleans())), guesses)
def test_every_outcome_moves_the_guesses_of_its_kind_and_no_others(
    earlier: list[tuple[Guess, bool]], guess: Guess
) -> None:
    noted = Outcomes()
    for other, accepted in earlier:
        noted.observe(other, accepted)
    after = []
    for accepted in (False, True):
        observed = copy.deepcopy(noted)
        observed.observe(guess, accepted)
        after.append(observed.probability(guess))
    assert 0 < after[0] < after[1] < 1
    if all(other.cell != guess.cell for other, _ in earlier):
        assert noted.probability(guess) == pytest.approx(guess.estimate)
        assert after[0] < guess.estimate < after[1]
    likelier = guess._replace(estimate=(1 + guess.estimate) / 2)
    assert noted.probability(likelier) > noted.probability(guess)


@given(guesses, st.integers(1, 9))
def test_the_estimate_gives_way_to_what_is_seen(guess: Guess, tenths: int) -> None:
    guess, noted = guess._replace(estimate=0.5), Outcomes()
    for index in range(4000):
        noted.observe(guess, index % 10 < tenths)
    assert noted.probability(guess) == pytest.approx(tenths / 10, abs=0.01)


@pytest.mark.parametrize(("tree", "recycles"), [(False, False), (True, False), (True, True)])
@given(texts, st.lists(st.integers(0, 2), min_size=1, max_size=40))
def test_draft_tokens_count_up_to_the_first_that_is_wrong(
    tree: bool, recycles: bool, prompt: list[int], answer: list[int]
) -> None:
    """As many are right as were accepted; of a chain at most one is wrong, and the last."""
    noted = Watched()
    drafter = SuffixDrafter(tree=tree, outcomes=noted, successors={} if recycles else None)
    drafter.start(prompt)
    while answer:
        noted.observed.clear()
        draft = drafter.propose(100, THRESHOLDS)
        verdict = verdict_on(draft, answer)
        likeliest = [(1, 2, 0)] * (1 + len(draft.token_ids)) if recycles else ()
        verdict = replace(verdict, likeliest=likeliest)
        taken = answer[: verdict.num_accepted + 1]
        drafter.observe(taken, verdict)
        assert sum(right for _, right in noted.observed) == verdict.num_accepted
        assert all(0 < guess.estimate < 1 for guess, _ in noted.observed)
        if not tree:
            assert all(right for _, right in noted.observed[:-1])
        answer = answer[len(taken) :]


def test_drafters_of_a_run_learn_from_each_other() -> None:
    make_drafter = drafter_factory(DraftOptions(drafter="suffix"))
    prompt = [*range(10, 50), 10, 11]

    def first_draft(native: int) -> Draft:
        drafter = make_drafter()
        drafter.start(prompt)
        draft = drafter.propose(100, THRESHOLDS)
        drafter.observe([native], Verdict(0, native))
        return draft

    drafts = [first_draft(native=99) for _ in range(20)]
    lengths = [len(draft.token_ids) for draft in drafts]
    assert lengths == sorted(lengths, reverse=True)
    assert lengths[-1] < lengths[0]
    likely = [draft.probabilities[0] for draft in drafts if draft.probabilities]
    assert likely == sorted(likely, reverse=True)
    other = drafter_factory(DraftOptions(drafter="suffix"))()
    other.start(prompt)
    assert other.propose(100, THRESHOLDS) == drafts[0]


@given(st.floats(0, 0.5), st.integers(1, 96))
def test_the_likelier_a_token_goes_on_the_less_it_is_worth(slope: float, longest: int) -> None:
    by_hundredths = marginal_values(acceptance_thresholds({0: 1.0, longest: 1.0 + slope * longest}))
    assert len(by_hundredths) == 101
    assert by_hundredths[0] == 1
    assert list(by_hundredths) == sorted(by_hundredths, reverse=True)
    # At least what its own time is, since the best step takes longer than its tokens alone.
    assert by_hundredths[100] >= min(1.0, 1.5 * slope)
