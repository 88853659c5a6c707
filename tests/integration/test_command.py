"""The stock `lm_eval` command with our model and tasks, run as a user runs it."""

import json
from pathlib import Path
from typing import Any

import pytest
from in_process import evaluate_into
from lm_eval_command import Command

from copyspec_eval import records
from copyspec_eval.cli import main
from copyspec_eval.records import TurnRecord
from copyspec_eval.reports.recorded import read_recorded


@pytest.fixture
def command(byte_model: Path, questions: Path, tmp_path: Path) -> Command:
    return Command(byte_model, questions, tmp_path / "output")


def copied_share(rows: list[TurnRecord]) -> float:
    drafts = [each for row in rows for each in (row.counts.drafts or {}).values()]
    copied = sum(each.num_accepted for each in drafts)
    return copied / sum(row.counts.num_tokens or 0 for row in rows)


def turns_of(rows: list[TurnRecord]) -> list[tuple[int, int]]:
    return sorted((row.doc_id, row.turn) for row in rows)


EVERY_TURN = sorted((doc, turn) for doc in range(6) for turn in (1, 2))
SHORT = ("--gen_kwargs", "max_gen_toks=24")


def test_one_command_gives_answers_figures_and_records(command, monkeypatch):
    printed = command.run(*SHORT)
    assert printed.count("tokens/s") == 1, "our table follows lm-eval's"
    assert printed.splitlines()[-1] == f"→ {command.output / 'report.html'}"
    results = command.results()
    rows = command.rows()
    assert turns_of(rows) == EVERY_TURN
    assert len({row.run_id for row in rows}) == 1
    samples = command.samples()
    for row in rows:
        assert samples[row.doc_id]["resps"][row.turn - 1] == [row.text]
        assert samples[row.doc_id]["doc"]["category"] == row.category
    assert results["config"]["copyspec"]["run_id"] == rows[0].run_id
    figures = results["config"]["copyspec"]["figures"]["mt_redundant"]
    for turn in (1, 2):
        copied = copied_share([row for row in rows if row.turn == turn])
        assert figures[f"turn {turn}"]["copied_share"] == pytest.approx(copied)
        assert set(figures[f"turn {turn}"]["by_category"]) == {"math", "writing"}
        assert figures[f"turn {turn}"]["tokens_per_second"] > 0
    assert copied_share(rows) > 0
    [run] = json.loads((command.output / "manifest.json").read_text())["runs"]
    assert run["run_id"] == rows[0].run_id
    spec = run["spec"]
    assert (spec["drafting"]["drafter"], spec["drafting"]["gamma"]) == ("copyspec", 2)
    assert {"python", "torch", "transformers", "lm-eval", "copyspec-eval"} <= set(spec["versions"])
    assert spec["evaluation"]["gen_kwargs"] == {"max_gen_toks": 24}
    assert spec["evaluation"]["apply_chat_template"] is True
    assert spec["tasks"].keys() == {"mt_redundant"}
    assert spec["tasks"]["mt_redundant"]["version"] == results["versions"]["mt_redundant"]

    baseline = command.elsewhere("hf")
    monkeypatch.setenv("COPYSPEC_DATA_DIR", str(command.data))
    short: Any = {"gen_kwargs": "max_gen_toks=24"}
    evaluate_into(baseline.output, command.model, "dtype=float64", "hf", **short)
    assert baseline.conversations() == command.conversations()
    assert set(baseline.metrics()) == {"answered,none"}
    assert baseline.metrics() == command.metrics(), "what is not of pairs is not in lm-eval's table"


def test_a_killed_run_says_so_and_asks_nothing_twice(command, monkeypatch, capsys):
    cache = str(command.output / "cache")
    more = ("--gen_kwargs", "max_gen_toks=60", "--use_cache", cache)
    command.end(*more, options="drafter=none", answers=4)
    before = command.rows()
    assert 4 <= len(before) < 12
    assert main(["report", str(command.output)]) == 0
    cut_short = f"run {before[0].run_id} was cut short or is still running (answers: {len(before)} "
    assert cut_short + "of 12; results of lm-eval: none)" in capsys.readouterr().out

    command.run(*more, options="drafter=none")
    rows = command.rows()
    assert rows[: len(before)] == before
    assert sorted(set(turns_of(rows))) == EVERY_TURN
    assert len(rows) <= 13, "the kill may have come before lm-eval had written an answer"
    assert len({row.run_id for row in rows}) == 2
    runs = json.loads((command.output / "manifest.json").read_text())["runs"]
    assert [run["run_id"] for run in runs] == [before[0].run_id, rows[-1].run_id]
    killed, continued = ({**run["spec"], "code": None} for run in runs)
    assert killed == continued, "so that a report takes the two for one"
    if runs[0]["spec"] == runs[1]["spec"]:  # the checkout may have changed meanwhile
        run = read_recorded(command.output)
        assert (turns_of(run.records), run.cut_short) == (EVERY_TURN, {}), "each counts once"

    monkeypatch.setenv("COPYSPEC_DATA_DIR", str(command.data))
    same: Any = {"options": "dtype=float64,drafter=none", "gen_kwargs": "max_gen_toks=60"}
    whole = command.elsewhere("whole")
    evaluate_into(whole.output, command.model, **same)
    assert whole.conversations() == command.conversations()
    assert whole.metrics() == command.metrics()

    evaluate_into(command.output, command.model, **same, use_cache=cache)
    assert command.rows() == rows, "a third run is served from the cache alone"
    assert not command.results()["config"]["copyspec"]["figures"], "and has no times of its own"
    assert whole.metrics() == command.metrics()


@pytest.mark.slow
def test_options_of_the_harness(command):
    more = ("--samples", '{"mt_redundant": [1, 4]}', "--system_instruction", "Answer in one word.")
    command.run(*SHORT, *more, "--batch_size", "4")
    assert turns_of(command.rows()) == [(1, 1), (1, 2), (4, 1), (4, 2)]
    assert {row.batch_size for row in command.rows()} == {4}
    for prompts, _ in command.conversations():
        for prompt in prompts.values():
            assert prompt["arg_0"].startswith("system: Answer in one word.\nuser: ")
    baseline = command.elsewhere("hf")
    baseline.run(*SHORT, *more, model="hf", options="")
    assert baseline.conversations() == command.conversations()


@pytest.mark.slow
def test_two_ranks_share_the_documents(command):
    """Five documents, so that lm-eval pads one rank with a request asked before."""
    torchrun = ("python", "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2")
    command.run(*SHORT, "--limit", "5", program=(*torchrun, "-m", "lm_eval"))
    per_rank = [
        {row.doc_id for row in records.read(records.records_file(command.output, rank), [])}
        for rank in (0, 1)
    ]
    assert per_rank == [{0, 2, 4}, {1, 3}] or per_rank == [{0, 1, 2}, {0, 1}]
    assert len(command.rows()) == 10
    assert len({row.run_id for row in command.rows()}) == 1
    alone = command.elsewhere("alone")
    alone.run(*SHORT, "--limit", "5")
    assert alone.conversations() == command.conversations()
    assert alone.metrics() == command.metrics()
    figures = command.results()["config"]["copyspec"]["figures"]["mt_redundant"]
    assert {turn: part["turns"] for turn, part in figures.items()} == {"turn 1": 5, "turn 2": 5}
