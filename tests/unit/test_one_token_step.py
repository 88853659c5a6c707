"""A step beside the reading of its weights: what is measured, and how it is put."""

import copy

from benchmarks import one_token_step
from recorded_runs import MADE
from tiny_models import tiny_model


def test_steps_copies_and_choices_of_a_model_are_measured(our_kernels: None) -> None:
    model = copy.deepcopy(tiny_model("llama"))
    result = one_token_step.measure(model, rounds=2)
    assert result["weight_bytes"] == sum(weight.nbytes for weight in model.parameters())
    assert all(value > 0 for value in result["figures"].values())
    assert len(result["figures"]) == 2 + 3 + 1 + 3
    assert "sampling, temperature 0.7 of the step" in one_token_step.table(result)


def test_the_page_has_times_and_shares() -> None:
    figures = {"step": 40.0, "copy": 40.0, "reading of the step": 0.5}
    made = {"command": "one_token_step", "threads": 2, **MADE}
    text = one_token_step.render(
        {"weight_bytes": 1_500_000_000, "figures": figures, "manifest": made}
    )
    assert "1.500 GB of weights" in text
    assert "P, 2 threads; torch 2; 2026-01-02" in text
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines()]
    assert cells[-2:] == [["copy, ms", "40.00"], ["reading of the step", "50.0%"]]
