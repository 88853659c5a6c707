"""Answers that repeat themselves to their end."""

from hypothesis import given
from hypothesis import strategies as st
from sample_rows import ROW, with_counts

from copyspec_eval.loops import looped_tokens
from copyspec_eval.reports.summary import METRICS
from copyspec_eval.reports.turns import frame

METRIC = {metric.name: metric for metric in METRICS}


def looped_by_hand(tokens: list[int]) -> int:
    """The same by trying every period."""
    best = 0
    for period in range(1, len(tokens) // 3 + 1):
        count = 0
        while count + period < len(tokens) and tokens[-1 - count] == tokens[-1 - count - period]:
            count += 1
        if count >= max(32, 2 * period):
            best = max(best, count)
    return best


@given(
    st.lists(st.integers(0, 2), max_size=30),
    st.lists(st.integers(0, 2), min_size=1, max_size=20),
    st.integers(0, 12),
    st.integers(0, 19),
)
def test_every_period_is_tried(start, loop, times, more):
    tokens = start + loop * times + loop[:more]
    assert looped_tokens(tokens) == looped_by_hand(tokens)


def test_what_is_no_loop():
    assert looped_tokens([]) == 0
    assert looped_tokens(list(range(500))) == 0
    assert looped_tokens([1, 2] * 3) == 0, "too short"
    assert looped_tokens([*[1] * 100, 2]) == 0, "it went on"
    assert looped_tokens(list(range(100)) * 2) == 0, "twice is no loop"


def test_shares_are_of_all_tokens():
    cut = with_counts(ROW, num_tokens=100, num_looped_tokens=60, finish_reason="length")
    whole = with_counts(ROW, num_tokens=100, num_looped_tokens=0, finish_reason="eos")
    unknown = with_counts(ROW, num_tokens=100, num_looped_tokens=None, finish_reason=None)
    turns = frame([cut, whole, whole, unknown])
    assert METRIC["looped_share"].figure(turns) == 60 / 300
    assert METRIC["cut_share"].figure(turns) == 1 / 3
