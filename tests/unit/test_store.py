"""The store of earlier answers: bounded, and never indexed anew."""

import itertools
from collections.abc import Sequence
from unittest import mock

from hypothesis import given
from hypothesis import strategies as st

from copyspec_eval.drafters.automaton import AnswerStore, StoreMatch, SuffixAutomaton
from copyspec_eval.drafters.suffix import SuffixDrafter
from copyspec_eval.types import Verdict

THRESHOLDS = [0.01] * 20
answers = st.lists(st.lists(st.integers(0, 3), min_size=1, max_size=12), max_size=30)


def store_of(answers: Sequence[Sequence[int]], capacity: int = 2**20) -> AnswerStore:
    store = AnswerStore(capacity)
    for answer in answers:
        store.add(answer)
    return store


def runs(token_ids: Sequence[int]) -> set[tuple[int, ...]]:
    places = itertools.combinations(range(len(token_ids) + 1), 2)
    return {tuple(token_ids[start:end]) for start, end in places}


@given(answers, st.integers(10, 60))
def test_the_latest_answers_are_kept_within_bounds(
    added: list[list[int]], most_tokens: int
) -> None:
    store = store_of(added, most_tokens)
    longest = 1 + max(map(len, added), default=0)
    remaining = sum(len(automaton.token_ids) for automaton in store.automata)
    assert remaining <= max(most_tokens, 2 * longest)
    latest: list[list[int]] = []
    for answer in reversed(added):
        if sum(len(other) + 1 for other in (*latest, answer)) >= most_tokens // 2:
            break
        latest.append(answer)
    for answer in latest:
        matches = [StoreMatch(automaton, answer).length for automaton in store.automata]
        assert max(matches) == len(answer)


@given(answers)
def test_nothing_is_matched_across_the_end_of_an_answer(added: list[list[int]]) -> None:
    [automaton] = store_of(added).automata
    together = [token for answer in added for token in answer]
    match = StoreMatch(automaton, together)
    wanted = max(
        (len(run) for answer in added for run in runs(answer) if together[-len(run) :] == [*run]),
        default=0,
    )
    assert match.length == wanted


@given(answers, answers, st.integers(10, 60))
def test_earlier_runs_are_bounded_like_the_run_and_told_apart_from_it(
    earlier: list[list[int]], added: list[list[int]], most_tokens: int
) -> None:
    store, one_by_one = AnswerStore(most_tokens, earlier), store_of(earlier, most_tokens)
    remaining = [automaton.token_ids for automaton in store.automata]
    assert remaining == [automaton.token_ids for automaton in one_by_one.automata]
    before = [(automaton, len(automaton.token_ids)) for automaton in store.automata]
    for answer in added:
        store.add(answer)
    for automaton in store.automata:
        assert automaton.num_earlier == sum(n for other, n in before if other is automaton)
    assert {automaton.num_earlier for automaton in one_by_one.automata} == {0}


def test_no_token_is_indexed_twice() -> None:
    append = SuffixAutomaton.append
    with mock.patch.object(SuffixAutomaton, "append", autospec=True, side_effect=append) as counted:
        store = AnswerStore(capacity=40)
        for number in range(50):
            store.add(range(number, number + 7))
    assert counted.call_count == 50 * 8


def test_a_request_goes_on_while_its_store_drops_answers() -> None:
    store = store_of([[5, 6, 7, 8, 9]], 20)
    drafter = SuffixDrafter(store)
    drafter.start([1, 5, 6])
    for number in range(10):
        store.add([20 + number] * 5)
    assert drafter.propose(10, THRESHOLDS).token_ids == (7, 8, 9)
    drafter.observe([7], Verdict(1, 8))
    later = SuffixDrafter(store)
    later.start([1, 5, 6])
    assert later.propose(10, THRESHOLDS).token_ids == ()


def test_both_halves_are_copied_from() -> None:
    store = store_of([[5, 6, 7, 8], [1, 2, 3, 4], [9, 9, 9]], 20)
    assert len(store.automata) == 2
    for begin, following in (([0, 5, 6], (7, 8)), ([0, 1, 2], (3, 4))):
        for tree in (False, True):
            drafter = SuffixDrafter(store, tree)
            drafter.start(begin)
            draft = drafter.propose(10, THRESHOLDS)
            assert draft.token_ids[:2] == following
            assert draft.source == "store"
