"""The stock `lm_eval` command with our model and tasks, run as a user runs it."""

import json
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from in_process import evaluate_into
from lm_eval_command import TIMED, TIMED_ALONE, Command, neighbour
from transformers import AutoModelForCausalLM, AutoTokenizer, Qwen2Config

from copyspec_eval import records
from copyspec_eval.cli import main
from copyspec_eval.records import TurnRecord
from copyspec_eval.reports.recorded import read_recorded


@pytest.fixture
def command(byte_model: Path, questions: Path, tmp_path: Path) -> Command:
    return Command(byte_model, questions, tmp_path / "output")


def copied_share(rows: list[TurnRecord]) -> float:
    copied = sum(
        of_source.num_accepted
        for row in rows
        for source, of_source in (row.counts.drafts or {}).items()
        if source != "model"
    )
    return copied / sum(row.counts.num_tokens or 0 for row in rows)


def turns_of(rows: list[TurnRecord]) -> list[tuple[int, int]]:
    return sorted((row.doc_id, row.turn) for row in rows)


EVERY_TURN = sorted((doc, turn) for doc in range(6) for turn in (1, 2))
SHORT = ("--gen_kwargs", "max_gen_toks=24")


def test_one_command_gives_answers_figures_and_records(command, monkeypatch):
    printed = command.run(*SHORT)
    assert printed.count("tokens/s") == 1, "our table follows lm-eval's"
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
        assert all(figures[f"turn {turn}"][name] > 0 for name in TIMED_ALONE)
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

    baseline = neighbour(command, "hf")
    monkeypatch.setenv("COPYSPEC_DATA_DIR", str(command.data))
    settings: dict[str, Any] = {"gen_kwargs": "max_gen_toks=24"}
    evaluate_into(baseline.output, command.model, "dtype=float64", "hf", **settings)
    assert baseline.conversations() == command.conversations()
    assert set(baseline.metrics()) == {"answered,none"}
    assert baseline.metrics() == command.metrics(), "what is not of pairs is not in lm-eval's table"


def test_a_killed_run_says_so_and_asks_nothing_twice(command, monkeypatch, capsys):
    cache = str(command.output / "cache")
    more = ("--gen_kwargs", "max_gen_toks=100", "--use_cache", cache)
    command.end(*more, options="drafter=none", answers=8)
    before = command.rows()
    assert 8 <= len(before) < 12
    assert main(["report", str(command.output)]) == 0
    cut_short = f"run {before[0].run_id} was cut short or is still running (answers: {len(before)} "
    assert cut_short + "of 12; results of lm-eval: none)" in capsys.readouterr().out

    command.run(*more, options="drafter=none")
    rows = command.rows()
    assert rows[: len(before)] == before
    once = sorted(set(turns_of(rows)))
    assert once == EVERY_TURN
    assert len(rows) <= len(once) + 1, "the kill may have come before lm-eval had kept an answer"
    assert len({row.run_id for row in rows}) == 2
    runs = json.loads((command.output / "manifest.json").read_text())["runs"]
    assert [run["run_id"] for run in runs] == [before[0].run_id, rows[-1].run_id]
    killed, continued = ({**run["spec"], "code": None} for run in runs)
    assert killed == continued, "so that a report takes the two for one"
    if runs[0]["spec"] == runs[1]["spec"]:  # the checkout may have changed meanwhile
        run = read_recorded(command.output)
        assert (turns_of(run.records), run.cut_short) == (EVERY_TURN, {}), "each counts once"

    monkeypatch.setenv("COPYSPEC_DATA_DIR", str(command.data))
    same: dict[str, Any] = {
        "options": "dtype=float64,drafter=none",
        "gen_kwargs": "max_gen_toks=100",
    }
    whole = neighbour(command, "whole")
    evaluate_into(whole.output, command.model, **same)
    assert whole.conversations() == command.conversations()
    assert whole.metrics() == command.metrics()

    evaluate_into(command.output, command.model, **same, use_cache=cache)
    assert command.rows() == rows, "a third run is served from the cache alone"
    assert not command.results()["config"]["copyspec"]["figures"], "and has no times of its own"
    assert whole.metrics() == command.metrics()


def test_bad_data_is_named_before_a_model_is_loaded(command, tmp_path):
    (tmp_path / "mt_bench").mkdir()
    (tmp_path / "mt_bench" / "question_redundant.jsonl").write_text('{"question_id": 1}\n')
    without_model = replace(command, data=tmp_path, model=tmp_path / "nowhere")
    last = without_model.fail(model="hf", options="")
    assert last.startswith("copyspec-eval: error: ")
    assert "question_redundant.jsonl:1: Object missing required field `category`" in last


@pytest.mark.slow
@pytest.mark.parametrize(
    ("more", "documents"),
    [
        (("--limit", "2"), [0, 1]),
        (("--samples", '{"mt_redundant": [1, 4]}'), [1, 4]),
        (("--batch_size", "4"), list(range(6))),
        (("--batch_size", "auto"), list(range(6))),
        (("--system_instruction", "Answer in one word."), list(range(6))),
        (("--predict_only",), list(range(6))),
    ],
    ids=lambda value: value[0] if isinstance(value, tuple) else "",
)
def test_options_of_the_harness(command, more, documents):
    command.run(*SHORT, *more)
    assert [sample["doc_id"] for sample in command.samples()] == documents
    assert len(command.rows()) == 2 * len(documents)
    if more[0] == "--system_instruction":
        for sample in command.samples():
            for prompt in sample["arguments"].values():
                assert prompt["arg_0"].startswith("system: Answer in one word.\nuser: ")
    if more[0] == "--predict_only":
        assert set(command.metrics()) == {"bypass,none"}
    sizes = {"4": {4}, "auto": {4}}.get(more[-1], {1})
    assert {row.batch_size for row in command.rows()} == sizes
    baseline = neighbour(command, "hf")
    alone = more if more[0] != "--batch_size" else ()
    baseline.run(*SHORT, *alone, model="hf", options="")
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
    assert [sample["doc_id"] for sample in command.samples()] == [0, 1, 2, 3, 4]
    alone = neighbour(command, "alone")
    alone.run(*SHORT, "--limit", "5")
    assert alone.conversations() == command.conversations()
    assert alone.metrics() == command.metrics()
    figures, wanted = (
        {
            turn: {name: value for name, value in part.items() if not name.startswith(TIMED)}
            for turn, part in run.results()["config"]["copyspec"]["figures"]["mt_redundant"].items()
        }
        for run in (command, alone)
    )
    assert {turn: part["turns"] for turn, part in figures.items()} == {"turn 1": 5, "turn 2": 5}
    assert figures.keys() == wanted.keys()


@pytest.fixture(scope="module")
def qwen(data_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A small random Qwen2 with the real Qwen2.5 tokenizer and chat template."""
    folder = tmp_path_factory.mktemp("qwen")
    tokenizer = AutoTokenizer.from_pretrained(data_dir / "tokenizers" / "qwen2.5")
    config = Qwen2Config(
        vocab_size=151936,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=4096,
        initializer_range=0.05,
        tie_word_embeddings=True,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    torch.manual_seed(0)
    auto: Any = AutoModelForCausalLM
    auto.from_config(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    yield folder
    shutil.rmtree(folder)


@pytest.fixture(scope="module")
def stock_answers(qwen: Path, data_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Command:
    """All of MT-Redundant, answered by the stock `hf`."""
    stock = Command(qwen, data_dir, tmp_path_factory.mktemp("stock") / "hf")
    stock.run(*MEDIUM, model="hf", options="")
    return stock


MEDIUM = ("--gen_kwargs", "max_gen_toks=64")


@pytest.mark.slow
@pytest.mark.parametrize(
    "options",
    [
        "gamma=3",
        "drafter=none",
        "drafter=suffix",
        "drafter=suffix,store=true,tree=true,exact=false",
    ],
)
def test_all_of_mt_redundant_as_hf_answers_it(qwen, data_dir, tmp_path, stock_answers, options):
    """80 questions, two turns, real tokenizer; float64 leaves no near-ties to random weights."""
    ours = Command(qwen, data_dir, tmp_path / "copyspec")
    ours.run(*MEDIUM, options=options)
    assert len(ours.conversations()) == 80
    assert ours.conversations() == stock_answers.conversations()
    rows = ours.rows()
    assert len(rows) == 160
    assert len({row.category for row in rows}) == 8
    copied = copied_share(rows)
    assert copied == 0 if options == "drafter=none" else copied > 0.5
