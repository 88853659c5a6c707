"""The suffix automaton against counting by hand, and the drafter against its rule."""

import time
from collections import Counter
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from copyspec_eval.drafters.automaton import SuffixAutomaton
from copyspec_eval.drafters.suffix import SuffixDrafter
from copyspec_eval.drafters.thresholds import acceptance_thresholds
from copyspec_eval.types import Draft, Verdict

THRESHOLDS = [0.05] * 96
texts = st.lists(st.integers(0, 2), min_size=1, max_size=40)


def automaton_of(text: Sequence[int]) -> SuffixAutomaton:
    automaton = SuffixAutomaton()
    for token in text:
        automaton.append(token)
    return automaton


def ends_of(text: Sequence[int], part: Sequence[int]) -> list[int]:
    ends = range(len(part), len(text) + 1)
    return [end for end in ends if list(text[end - len(part) : end]) == list(part)]


@given(texts)
def test_every_substring_has_its_count_its_last_end_and_what_followed(text: list[int]) -> None:
    automaton = automaton_of(text)
    for start in range(len(text)):
        state = 0
        for end in range(start + 1, len(text) + 1):
            state = automaton.next[state][text[end - 1]]
            part = text[start:end]
            ends = ends_of(text, part)
            assert automaton.count[state] == len(ends)
            assert automaton.end[state] == ends[-1]
            followers = [text[end] for end in ends if end < len(text)]
            most = max(Counter(followers).values(), default=0)
            latest = [token for token in followers if followers.count(token) == most]
            assert automaton.best[state] == (latest[-1] if latest else -1)


@given(texts)
def test_the_last_link_is_the_longest_suffix_that_occurred_before(text: list[int]) -> None:
    automaton = automaton_of(text)
    suffixes = [text[start:] for start in range(1, len(text) + 1)]
    longest = max(len(part) for part in suffixes if not part or len(ends_of(text, part)) > 1)
    assert automaton.length[automaton.link[automaton.last]] == longest
    assert len(automaton.length) <= 2 * len(text) + 1


def drafted(
    text: Sequence[int], thresholds: Sequence[float] = THRESHOLDS, max_tokens: int = 1000
) -> Draft:
    drafter = SuffixDrafter()
    drafter.start(text)
    return drafter.propose(max_tokens, thresholds)


@given(texts, st.integers(0, 20))
def test_a_draft_is_copied_from_its_position_into_itself(text: list[int], limit: int) -> None:
    draft = drafted(text, max_tokens=limit)
    assert len(draft.token_ids) <= limit
    if draft.token_ids:
        continuation = [*text, *draft.token_ids]
        source = continuation[draft.position : draft.position + len(draft.token_ids)]
        assert source == list(draft.token_ids)
        assert text[draft.position - 1] == text[-1]


def test_the_most_frequent_continuation_wins_and_of_equals_the_latest() -> None:
    assert drafted([1, 5, 1, 6, 1, 5, 2, 1]).token_ids[0] == 5
    assert drafted([1, 5, 1, 6, 2, 1]).token_ids[0] == 6


def test_the_length_follows_the_probabilities() -> None:
    # 1 2 occurred once before: probabilities 1 / (1 + 2.5 / m) for m = 2, 3, …, multiplied.
    text = [1, 2, 3, 4, 5, 6, 7, 8, 9, 1, 2]
    probabilities = [2 / 4.5, 2 / 4.5 * 3 / 5.5, 2 / 4.5 * 3 / 5.5 * 4 / 6.5]
    assert drafted(text).probabilities[:3] == pytest.approx(probabilities)
    for count in (1, 2):
        threshold = probabilities[count - 1]
        assert len(drafted(text, [threshold - 1e-9] * 50).token_ids) == count
    # The third likely goes on, so that it is worth less.
    assert len(drafted(text, [probabilities[2] - 1e-9] * 50).token_ids) == 2
    assert len(drafted(text, [0.8 * probabilities[2]] * 50).token_ids) == 3
    assert drafted(text, [1.0] * 50) == Draft()
    high_later = [0.0] * 2 + [1.0] * 50
    assert len(drafted(text, high_later).token_ids) == 2


def test_at_the_end_of_the_text_it_continues_periodically() -> None:
    assert drafted([7, 8, 9] * 3, [0.0] * 12).token_ids == (7, 8, 9) * 4


def step(drafter: SuffixDrafter, accepted: int, native: int) -> Draft:
    """The next draft, after one of which `accepted` tokens and then `own` were taken."""
    draft = drafter.propose(100, THRESHOLDS)
    drafter.observe([*draft.token_ids[:accepted], native], Verdict(accepted, native))
    return drafter.propose(100, THRESHOLDS)


def test_it_resumes_behind_a_substitution() -> None:
    source = list(range(10, 40))
    drafter = SuffixDrafter()
    drafter.start([*source, 1, *source[:5]])
    resumed = step(drafter, accepted=4, native=99)  # 15 16 17 18, and 99 for 19
    assert resumed.token_ids[:3] == (20, 21, 22)
    assert resumed.position == source.index(20)
    # Substituted again after two tokens, it resumes again; after none, it gives up.
    again = step(drafter, accepted=2, native=98)
    assert again.token_ids[:2] == (23, 24)
    assert step(drafter, accepted=0, native=97) == Draft()


def test_thresholds_rise_with_the_slope_of_the_costs() -> None:
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


@pytest.mark.parametrize("text", [[7] * 20_000, list(range(20_000)), [0, 1] * 10_000])
def test_long_and_odd_texts_take_linear_time(text: list[int]) -> None:
    started = time.perf_counter()
    drafter = SuffixDrafter()
    drafter.start(text[:10_000])
    half = time.perf_counter() - started
    drafter.start(text[10_000:])
    whole = time.perf_counter() - started
    assert whole < 10 * half
    assert drafter.propose(10, THRESHOLDS).token_ids in ((), (7,) * 10, (0, 1) * 5)
