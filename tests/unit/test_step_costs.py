"""What a step costs is measured at every width that a draft may need."""

import pytest
from asking import SUFFIX, asked, engine
from tiny_models import tiny_model

from copyspec_eval.decoding.step_costs import step_costs
from copyspec_eval.drafters.thresholds import acceptance_thresholds


@pytest.mark.parametrize(
    ("model_type", "batch_size", "longest", "ends"),
    [
        ("gemma2", 1, 20, [0, 1, 3, 7, 15, 20]),
        ("gemma2", 3, 20, [0, 1, 3, 7, 15, 31, 60]),  # draft tokens of all rows
        ("gpt2", 1, 600, [127, 600]),  # wider than there are positions
    ],
)
def test_every_doubled_number_and_the_most_are_measured(
    model_type: str, batch_size: int, longest: int, ends: list[int]
) -> None:
    costs = step_costs(tiny_model(model_type), batch_size, longest, None, "copyspec")
    assert list(costs)[-len(ends) :] == ends
    assert costs[0] > 0
    assert len(acceptance_thresholds(costs)) == ends[-1]


def test_costs_of_longer_drafts_lengthen_none() -> None:
    made = engine(tiny_model("qwen2"), SUFFIX, num_draft_tokens=8, step_costs={0: 1.0, 64: 1.0})
    [answer] = made.generate(asked([[5, 6, 7] * 20], 30))
    assert max(attempt.num_drafted for attempt in answer.attempts) == 8
