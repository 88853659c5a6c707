"""The steps that a row's drafts and copies tell."""

from dataclasses import replace

import pytest
from sample_rows import ROW, with_counts

from copyspec_eval.reports.page.steps import Steps, steps
from copyspec_eval.types import Attempt, Span

FIRST, SECOND, NONE = (10, 3), (10, 2), (0, 0)


@pytest.mark.parametrize(
    ("attempts", "spans", "forwards", "expected"),
    [
        # Copies of 3 and 2 tokens from 1 and 5 on, each with a token of the model's.
        ((FIRST, SECOND), ((1, 3), (5, 2)), 5, ([NONE, FIRST, SECOND, NONE, NONE], True)),
        # A tree that copies from two places in one step.
        ((FIRST, SECOND), ((1, 2), (3, 1), (5, 2)), 5, ([NONE, FIRST, SECOND, NONE, NONE], True)),
        # Before the first copy, two steps of which one had a draft.
        (((4, 0), (10, 7)), ((2, 7),), 3, ([(4, 0), NONE, (10, 7)], False)),
        # The answer ends with a copy's last token.
        (((4, 0), (9, 9)), ((1, 9),), 2, ([(4, 0), (9, 9)], True)),
        # A draft model's tokens have no place in the row.
        ((FIRST, SECOND), (), 5, ([FIRST, SECOND, NONE, NONE, NONE], False)),
        # Damaged rows.
        (
            (FIRST, SECOND),
            ((10**9, 3), (5, -(10**9))),
            5,
            ([FIRST, SECOND, NONE, NONE, NONE], False),
        ),
        ((FIRST, SECOND), ((1, 3), (5, 2)), 10**9, None),
        ((FIRST, SECOND), (), None, None),
        ((), (), 10, None),
    ],
)
def test_steps(attempts, spans, forwards, expected):
    made = tuple(Attempt(*counts) for counts in attempts)
    copies = tuple(Span(start, length, 0) for start, length in spans)
    row = with_counts(replace(ROW, attempts=made, spans=copies), num_forwards=forwards)
    assert steps(row) == (expected and Steps(*expected))
