"""Every metric by hand; intervals that draw conversations, and memory that does not grow."""

import math
import tracemalloc
from dataclasses import replace
from typing import Any

import numpy
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pandas import Series
from sample_rows import PAIRED_ROW, ROW, with_baseline, with_counts

from copyspec_eval.reports import turns
from copyspec_eval.reports.summary import (
    bootstrap_interval,
    median_of_ratios,
    ratio_of_sums,
    summarise,
    weighted_median,
)
from copyspec_eval.reports.tables import gains, interval_column, run_figures, run_table
from copyspec_eval.types import DraftCounts


def figures(*rows):
    return summarise(turns.frame(rows))


def test_every_metric_by_hand():
    other = with_counts(
        replace(ROW, doc_id=4),
        **{"num_tokens": 30, "num_forwards": 30, "drafts": {}},
        **{"seconds": 15.0, "prefill_seconds": 0.0, "decode_seconds": 15.0},
    )
    values = figures(ROW, other)
    known = {name: value for name, value in values.items() if value is not None}
    assert known == pytest.approx(
        {
            **{"turns": 2, "runs": 1, "tokens": 20, "forwards": 17.5, "cut_share": 0},
            "tokens_per_second": 40 / 20,
            "decode_tokens_per_second": 38 / 19,
            "latency_seconds": 5.0,
            "tokens_per_forward": 40 / 35,
            "copied_share": 5 / 40,
            "drafted_per_token": 20 / 40,
            "accepted_per_attempt": 2.5,
            "context_accepted_per_attempt": 2.5,
        }
    )
    assert figures(other)["accepted_per_attempt"] is None
    assert math.isnan(ratio_of_sums(numpy.array([[1.0, 0.0], [2.0, 0.0]])))


CONTEXT, EARLIER = DraftCounts(2, 20, 3), DraftCounts(2, 9, 4)
STORE, MODEL = DraftCounts(3, 9, 4), DraftCounts(7, 35, 19)


@pytest.mark.parametrize(
    ("drafts", "expected"),
    [
        ({"model": MODEL}, [None, 19 / 7, 0, None, 3.5]),
        ({"context": CONTEXT, "store": STORE, "model": MODEL}, [7 / 5, 19 / 7, 0.7, None, 6.4]),
        ({"context": CONTEXT, "earlier": EARLIER}, [7 / 4, None, 0.7, 0.4, 2.9]),
    ],
)
def test_the_papers_figure_is_of_copies_alone_those_from_earlier_runs_among_them(drafts, expected):
    """A turn that copies nothing has no τ, whatever a draft model proposed."""
    row = with_counts(ROW, drafts=drafts)
    accepted = ("accepted_per_attempt", "model_accepted_per_attempt")
    names = (*accepted, "copied_share", "earlier_share", "drafted_per_token")
    assert [figures(row)[name] for name in names] == pytest.approx(expected)
    assert ("from earlier runs" in run_table([row])) == ("earlier" in drafts)


def test_every_metric_of_pairs_by_hand():
    slower: Any = with_baseline(replace(PAIRED_ROW, doc_id=4), num_tokens=12, seconds=6.0)
    slower = replace(slower, baseline=replace(slower.baseline, difference=None))
    values = figures(PAIRED_ROW, slower, replace(ROW, doc_id=5))
    assert values["baseline_tokens_per_second"] == pytest.approx(22 / 16)
    assert values["speedup"] == pytest.approx((20 / 10) / (22 / 16)), "of the paired turns only"
    assert (values["speedup_low"], values["speedup_high"]) == (1.0, 2.0)
    assert values["speedup_median"] == pytest.approx((2 / 1 + 2 / 2) / 2)
    assert (values["speedup_median_low"], values["speedup_median_high"]) == (1.0, 2.0)
    assert (values["identical"], values["near_tie"], values["diverged"]) == (0.5, 0.5, 0.0)
    assert figures(PAIRED_ROW)["speedup_median_low"] is None, "one turn has no interval"


def test_the_speedup_of_ended_answers_by_hand():
    """Of answers that neither decoder had cut: 20 tokens in 9 s against 20 in 20 s."""

    def pair(doc_id, seconds, reason, other):
        row = replace(PAIRED_ROW, doc_id=doc_id)
        row = with_baseline(row, num_tokens=10, seconds=10.0, finish_reason=other)
        return with_counts(row, num_tokens=10, seconds=seconds, finish_reason=reason)

    ended = [pair(1, 5.0, "eos", "eos"), pair(2, 4.0, "stop", "eos")]
    looped = [pair(3, 1.0, "length", "length"), pair(4, 1.0, "eos", "length")]
    values = figures(*ended, *looped)
    assert values["speedup_ended"] == pytest.approx((20 / 9) / (20 / 20))
    assert (values["speedup_ended_low"], values["speedup_ended_high"]) == (2.0, 2.5)
    assert values["speedup"] == pytest.approx((40 / 11) / (40 / 40))
    assert figures(*looped)["speedup_ended"] is None
    cells = map(interval_column("speedup_ended").cell, map(Series, (values, figures(*looped))))
    assert [*cells] == ["2.22 (2.00 to 2.50)", "none ended"]
    won = "2.22× faster{} (95 %: 2.00 to 2.50), 0 of {} answers identical"
    assert gains(ended) == [won.format("", 2)]
    assert gains([*ended, *looped]) == [won.format(" over the 2 answers that ended", 4)]
    assert " over the answer that ended (one conversation only)" in gains([ended[0], *looped])[0]
    [of_looped] = gains(looped)
    assert " over all answers (none ended)" in of_looped


def test_what_a_backend_does_not_report_has_no_figure():
    mute = with_counts(ROW, num_tokens=None, num_forwards=None, drafts=None, decode_seconds=None)
    values = figures(mute)
    assert values["tokens_per_second"] is values["tokens"] is values["copied_share"] is None
    assert values["latency_seconds"] == 5.0
    assert figures(mute, replace(ROW, doc_id=4))["tokens_per_second"] == 2.0


def conversation(doc_id, *ratios):
    """A document's turns, each so many times as fast as the baseline."""
    fast = with_counts(replace(PAIRED_ROW, doc_id=doc_id), seconds=1.0)
    return [
        with_baseline(replace(fast, turn=turn), seconds=ratio)
        for turn, ratio in enumerate(ratios, start=1)
    ]


def test_turns_of_a_conversation_are_drawn_together():
    """Turn 2 is always five times as fast as turn 1: each conversation's median is the same."""
    rows = [row for doc in range(20) for row in conversation(doc, 1.0, 5.0)]
    values = figures(*rows)
    assert values["speedup_median"] == 3.0
    assert (values["speedup_median_low"], values["speedup_median_high"]) == (3.0, 3.0)
    assert (values["speedup_low"], values["speedup_high"]) == (3.0, 3.0)
    separate = figures(*(replace(row, doc_id=index) for index, row in enumerate(rows)))
    both = separate["speedup_median_low"], separate["speedup_median_high"]
    assert both == (1.0, 5.0), "as documents of their own they vary"


def test_an_interval_covers_the_truth_about_as_often_as_it_says():
    """95 % of 200 intervals of a mean, of 40 clusters of three equal values each."""
    source, clusters = numpy.random.default_rng(7), numpy.repeat(numpy.arange(40), 3)

    def covers(values):
        low, high = bootstrap_interval(lambda drawn: drawn @ values / drawn.sum(axis=1), clusters)
        return low <= 0 <= high

    covered = [covers(numpy.repeat(source.normal(size=40), 3)) for _ in range(200)]
    assert 180 <= sum(covered) <= 198


def test_memory_does_not_grow_with_resamples_and_rows():
    values = numpy.ones(50_000)
    tracemalloc.start()
    try:
        bootstrap_interval(lambda drawn: drawn @ values, numpy.arange(50_000))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 400e6, "2,000 resamples at once would take 0.8 GB"


@given(st.lists(st.tuples(st.integers(-5, 5), st.integers(0, 4)), min_size=1, max_size=12))
def test_a_weighted_median_is_the_median_of_repetitions(items):
    items = sorted(items)
    values, weights = numpy.array(items, dtype=float).T
    if weights.sum():
        repeated = numpy.repeat(values, weights.astype(int))
        assert weighted_median(values, weights[None])[0] == numpy.median(repeated)
        pairs = numpy.stack([repeated, *[numpy.ones(len(repeated))] * 3], axis=1)
        assert median_of_ratios(pairs) == numpy.median(repeated)


def test_table_has_a_line_per_task_turn_and_drafter():
    rows = [ROW, replace(ROW, doc_id=4, category="writing"), replace(ROW, turn=2)]
    assert len(run_table(rows).splitlines()) == 2 + 2
    assert len(run_table([*rows, replace(ROW, drafter="another")]).splitlines()) == 2 + 3
    assert run_figures(rows)["mt_bench"]["turn 2"]["turns"] == 1
    assert run_figures(rows)["mt_bench"]["turn 1"]["by_category"]["writing"]["tokens"] == 10
