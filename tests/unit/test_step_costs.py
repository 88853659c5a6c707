"""What a step costs is measured at every width that a draft may need."""

from __future__ import annotations

from tiny_models import tiny_model

from copyspec_eval.decoding.step_costs import measure_step_costs
from copyspec_eval.drafters.thresholds import acceptance_thresholds


def test_every_doubled_width_and_the_widest_are_measured() -> None:
    for batch_size in (1, 3):
        costs = measure_step_costs(tiny_model("gemma2"), batch_size, num_draft_tokens=20)
        assert list(costs) == [0, 1, 3, 7, 15, 20]
        assert min(costs.values()) > 0
        assert len(acceptance_thresholds(costs)) == 20
