"""The stock `lm_eval` command with a stock model, timed."""

import json

import pytest
from lm_eval_command import Command, neighbour

SHORT = ("--gen_kwargs", "max_gen_toks=24", "--limit", "3")


@pytest.mark.slow
def test_hf_timed_answers_as_hf_and_leaves_records(byte_model, questions, tmp_path):
    timed = Command(byte_model, questions, tmp_path / "timed")
    timed.run(*SHORT, model="copyspec-timed", options="base=hf")
    rows = timed.rows()
    assert sorted((row.doc_id, row.turn) for row in rows) == [
        (doc, turn) for doc in range(3) for turn in (1, 2)
    ]
    results = timed.results()
    for turn in (1, 2):
        figures = results["config"]["copyspec"]["figures"]["mt_redundant"][f"turn {turn}"]
        assert (figures["turns"], figures["tokens_per_forward"]) == (3, 1)
        assert figures["tokens_per_second"] > 0
        assert figures["latency_seconds"] > 0
        assert figures["copied_share"] is None
    [run] = json.loads((timed.output / "manifest.json").read_text())["runs"]
    assert run["run_id"] == rows[0].run_id
    assert run["spec"]["backend"] == "hf"
    assert run["spec"]["model"] == str(byte_model)
    assert run["spec"]["drafting"] == {}

    stock = neighbour(timed, "stock")
    stock.run(*SHORT, model="hf", options="")
    assert stock.conversations() == timed.conversations()
