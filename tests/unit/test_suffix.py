"""The suffix automaton and the store against counting by hand, and the drafter against its rule."""

import copy
import itertools
from collections import Counter
from unittest import mock

import pytest
from doubles import verdict_on
from hypothesis import given
from hypothesis import strategies as st

from copyspec_eval.drafters import outcomes
from copyspec_eval.drafters.automaton import AnswerStore, StoreMatch, SuffixAutomaton
from copyspec_eval.drafters.outcomes import Outcomes
from copyspec_eval.drafters.registry import drafter_factory
from copyspec_eval.drafters.suffix import SuffixDrafter
from copyspec_eval.drafters.thresholds import acceptance_thresholds, marginal_values
from copyspec_eval.types import Draft, DraftOptions, Verdict

THRESHOLDS = [0.05] * 96
texts = st.lists(st.integers(0, 2), min_size=1, max_size=40)


def ends_of(text, part):
    ends = range(len(part), len(text) + 1)
    return [end for end in ends if list(text[end - len(part) : end]) == list(part)]


@given(texts)
def test_every_substring_has_its_count_its_last_end_and_what_followed(text):
    automaton = SuffixAutomaton()
    for token in text:
        automaton.append(token)
    for start in range(len(text)):
        state = 0
        for end in range(start + 1, len(text) + 1):
            state = automaton.next[state][text[end - 1]]
            ends = ends_of(text, text[start:end])
            assert automaton.count[state] == len(ends)
            assert automaton.end[state] == ends[-1]
            followers = [text[end] for end in ends if end < len(text)]
            most = max(Counter(followers).values(), default=0)
            latest = [token for token in followers if followers.count(token) == most]
            assert automaton.best[state] == (latest[-1] if latest else -1)
    # The last link is the longest suffix that occurred before.
    suffixes = [text[start:] for start in range(1, len(text) + 1)]
    longest = max(len(part) for part in suffixes if not part or len(ends_of(text, part)) > 1)
    assert automaton.length[automaton.link[automaton.last]] == longest
    assert len(automaton.length) <= 2 * len(text) + 1


def started(text, store=None, tree=False):
    drafter = SuffixDrafter(store, tree)
    drafter.start(text)
    return drafter


def drafted(text, thresholds=THRESHOLDS, max_tokens=1000):
    return started(text).propose(max_tokens, thresholds)


@given(texts, st.integers(0, 20))
def test_a_draft_is_copied_from_its_position_into_itself(text, limit):
    draft = drafted(text, max_tokens=limit)
    assert len(draft.token_ids) <= limit
    if draft.token_ids:
        continuation = [*text, *draft.token_ids]
        source = continuation[draft.position : draft.position + len(draft.token_ids)]
        assert source == list(draft.token_ids)
        assert text[draft.position - 1] == text[-1]


def test_the_most_frequent_continuation_wins_and_of_equals_the_latest():
    assert drafted([1, 5, 1, 6, 1, 5, 2, 1]).token_ids[0] == 5
    assert drafted([1, 5, 1, 6, 2, 1]).token_ids[0] == 6
    # At the end of the text it continues periodically.
    assert drafted([7, 8, 9] * 3, [0.0] * 12).token_ids == (7, 8, 9) * 4


def test_the_length_follows_the_probabilities():
    # 1 2 occurred once before: probabilities 1 / (1 + 2.5 / m) for m = 2, 3, …, multiplied.
    text = [1, 2, 3, 4, 5, 6, 7, 8, 9, 1, 2]
    one, two, three = 2 / 4.5, 2 / 4.5 * 3 / 5.5, 2 / 4.5 * 3 / 5.5 * 4 / 6.5
    assert drafted(text).probabilities[:3] == pytest.approx([one, two, three])
    # The third likely goes on, so that it is worth less.
    for threshold, length in ((one, 1), (two, 2), (three, 2), (0.8 * three, 3)):
        assert len(drafted(text, [threshold - 1e-9] * 50).token_ids) == length
    assert drafted(text, [1.0] * 50) == Draft()
    assert len(drafted(text, [0.0] * 2 + [1.0] * 50).token_ids) == 2


def step(drafter, accepted, native):
    """The next draft, after one of which `accepted` tokens and then `native` were taken."""
    draft = drafter.propose(100, THRESHOLDS)
    drafter.observe([*draft.token_ids[:accepted], native], Verdict(accepted, native))
    return drafter.propose(100, THRESHOLDS)


def test_it_resumes_behind_a_substitution():
    source = list(range(10, 40))
    drafter = started([*source, 1, *source[:5]])
    resumed = step(drafter, accepted=4, native=99)  # 15 16 17 18, and 99 for 19
    assert resumed.token_ids[:3] == (20, 21, 22)
    assert resumed.position == source.index(20)
    # Substituted again after two tokens, it resumes again; after none, it gives up.
    assert step(drafter, accepted=2, native=98).token_ids[:2] == (23, 24)
    assert step(drafter, accepted=0, native=97) == Draft()


def test_thresholds_rise_with_the_slope_of_the_costs():
    assert acceptance_thresholds({0: 1.0, 3: 1.0}) == (0.0006,) * 3
    thresholds = acceptance_thresholds({0: 10.0, 4: 11.0, 8: 13.0, 16: 30.0})
    assert len(thresholds) == 16
    assert list(thresholds) == sorted(thresholds)
    assert len(set(thresholds)) == 3
    # What was measured above the line between its neighbours does not count.
    low = {0: 10.0, 8: 12.0}
    assert acceptance_thresholds(low | {4: 20.0}) == acceptance_thresholds(low)
    assert acceptance_thresholds({0: 1.0, 1: 100.0}) == (1.0,)
    assert acceptance_thresholds({0: 1.0}) == ()


@given(st.floats(0, 0.5), st.integers(1, 96))
def test_the_likelier_a_token_goes_on_the_less_it_is_worth(slope, longest):
    by_hundredths = marginal_values(acceptance_thresholds({0: 1.0, longest: 1.0 + slope * longest}))
    assert len(by_hundredths) == 101
    assert by_hundredths[0] == 1
    assert list(by_hundredths) == sorted(by_hundredths, reverse=True)
    # At least what its own time is, since the best step takes longer than its tokens alone.
    assert by_hundredths[100] >= min(1.0, 1.5 * slope)


answers = st.lists(st.lists(st.integers(0, 3), min_size=1, max_size=12), max_size=30)


def store_of(answers, capacity=2**20):
    store = AnswerStore(capacity)
    for answer in answers:
        store.add(answer)
    return store


@given(answers, st.integers(10, 60))
def test_the_latest_answers_are_kept_within_bounds(added, most_tokens):
    store = store_of(added, most_tokens)
    longest = 1 + max(map(len, added), default=0)
    remaining = sum(len(automaton.token_ids) for automaton in store.automata)
    assert remaining <= max(most_tokens, 2 * longest)
    size = 0
    for answer in reversed(added):
        size += len(answer) + 1
        if size >= most_tokens // 2:
            break
        matches = [StoreMatch(automaton, answer).length for automaton in store.automata]
        assert max(matches) == len(answer)


@given(answers)
def test_nothing_is_matched_across_the_end_of_an_answer(added):
    [automaton] = store_of(added).automata
    together = [*itertools.chain(*added)]
    ends = [together[start:] for start in range(len(together))]
    wanted = [len(end) for end in ends if any(ends_of(answer, end) for answer in added)]
    assert StoreMatch(automaton, together).length == max(wanted, default=0)


@given(answers, answers, st.integers(10, 60))
def test_earlier_runs_are_bounded_like_the_run_and_told_apart_from_it(earlier, added, most_tokens):
    store, one_by_one = AnswerStore(most_tokens, earlier), store_of(earlier, most_tokens)
    remaining = [automaton.token_ids for automaton in store.automata]
    assert remaining == [automaton.token_ids for automaton in one_by_one.automata]
    before = [(automaton, len(automaton.token_ids)) for automaton in store.automata]
    for answer in added:
        store.add(answer)
    for automaton in store.automata:
        assert automaton.num_earlier == sum(n for other, n in before if other is automaton)
    assert {automaton.num_earlier for automaton in one_by_one.automata} == {0}


def test_no_token_is_indexed_twice():
    append = SuffixAutomaton.append
    with mock.patch.object(SuffixAutomaton, "append", autospec=True, side_effect=append) as counted:
        store_of([range(number, number + 7) for number in range(50)], 40)
    assert counted.call_count == 50 * 8


def test_a_request_goes_on_while_its_store_drops_answers():
    store = store_of([[5, 6, 7, 8, 9]], 20)
    drafter = started([1, 5, 6], store)
    for number in range(10):
        store.add([20 + number] * 5)
    assert drafter.propose(10, [0.01] * 20).token_ids == (7, 8, 9)
    drafter.observe([7], Verdict(1, 8))
    assert started([1, 5, 6], store).propose(10, [0.01] * 20).token_ids == ()


def test_both_halves_are_copied_from():
    store = store_of([[5, 6, 7, 8], [1, 2, 3, 4], [9, 9, 9]], 20)
    assert len(store.automata) == 2
    for begin, following in (([0, 5, 6], (7, 8)), ([0, 1, 2], (3, 4))):
        for tree in (False, True):
            draft = started(begin, store, tree=tree).propose(10, THRESHOLDS)
            assert (draft.token_ids[:2], draft.source) == (following, "store")


estimates = st.floats(0.001, 0.999)
counts, long_counts = st.integers(1, 50), st.integers(1, 200)
kinds = st.sampled_from(["context", "store"])
guesses = st.builds(
    outcomes.guess_counted, kinds, long_counts, counts, counts, estimates
) | st.builds(outcomes.guess_resumed, long_counts, estimates)


@given(st.lists(st.tuples(guesses, st.booleans())), guesses)
def test_every_outcome_moves_the_guesses_of_its_kind_and_no_others(earlier, guess):
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
def test_the_estimate_gives_way_to_what_is_seen(guess, tenths):
    guess, noted = guess._replace(estimate=0.5), Outcomes()
    for index in range(4000):
        noted.observe(guess, index % 10 < tenths)
    assert noted.probability(guess) == pytest.approx(tenths / 10, abs=0.01)


@pytest.mark.parametrize("tree", [False, True])
@given(texts, texts)
def test_draft_tokens_count_up_to_the_first_that_is_wrong(tree, prompt, answer):
    """As many are right as were accepted; of a chain at most one is wrong, and the last."""
    noted = mock.Mock(wraps=Outcomes())
    drafter = SuffixDrafter(tree=tree, outcomes=noted)
    drafter.start(prompt)
    while answer:
        noted.observe.reset_mock()
        draft = drafter.propose(100, [0.02] * 32)
        verdict = verdict_on(draft, answer)
        taken = answer[: verdict.num_accepted + 1]
        drafter.observe(taken, verdict)
        observed = [call.args for call in noted.observe.call_args_list]
        assert sum(right for _, right in observed) == verdict.num_accepted
        assert all(0 < guess.estimate < 1 for guess, _ in observed)
        assert tree or all(right for _, right in observed[:-1])
        answer = answer[len(taken) :]


def test_drafters_of_a_run_learn_from_each_other():
    prompt = [*range(10, 50), 10, 11]

    def first_draft(drafter):
        drafter.start(prompt)
        draft = drafter.propose(100, [0.02] * 32)
        drafter.observe([99], Verdict(0, 99))
        return draft

    make_drafter, make_other = (drafter_factory(DraftOptions("suffix")) for _ in range(2))
    drafts = [first_draft(make_drafter()) for _ in range(20)]
    lengths = [len(draft.token_ids) for draft in drafts]
    assert lengths == sorted(lengths, reverse=True)
    assert lengths[-1] < lengths[0]
    likely = [draft.probabilities[0] for draft in drafts if draft.probabilities]
    assert likely == sorted(likely, reverse=True)
    assert first_draft(make_other()) == drafts[0]
