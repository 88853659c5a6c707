"""A real model: real answers, which drafts do not change."""

import json
from typing import Any

import pytest
import torch
from in_process import evaluate_into, rows_in
from sizing import document
from sizing.measure import measure
from sizing.shapes import shape_of
from transformers import AutoModelForCausalLM, AutoTokenizer

from copyspec_eval import generate


@pytest.mark.slow
def test_it_answers_and_its_shape_is_its_own(real_model):
    model: Any = AutoModelForCausalLM.from_pretrained(real_model)
    tokenizer: Any = AutoTokenizer.from_pretrained(real_model)
    assert shape_of(model.config).num_weights == sum(p.numel() for p in model.parameters())
    asked = [{"role": "user", "content": "What is the capital of France?"}]
    [answer] = generate(model, tokenizer, asked, max_new_tokens=20, drafter="none")
    assert "Paris" in answer.text


@pytest.mark.slow
def test_drafts_change_none_of_its_answers(real_model, tmp_path):
    asked: Any = {"tasks": ["quickstart_redundant"], "limit": 3, "gen_kwargs": "max_gen_toks=100"}
    figures = evaluate_into(tmp_path, real_model, "dtype=bfloat16,paired=true", **asked)
    assert figures["identical,none"] == 1
    drafts = [row.counts.drafts or {} for row in rows_in(tmp_path)]
    assert sum(each.num_accepted for of_row in drafts for each in of_row.values()) > 30


@pytest.mark.slow
def test_its_steps_take_about_what_the_formula_says(real_model):
    """Loosely: other programs may use the memory, too."""
    threads = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        measured = measure(real_model)
    finally:
        torch.set_num_threads(threads)
    assert json.loads(document.MEASURED.read_text())["shape"] == measured["shape"]
    for row in measured["steps"]:
        assert 0.5 < row["seconds"] / document.predicted_seconds(measured, row) < 6, row
