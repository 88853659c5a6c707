"""`copyspec-eval compare` on real runs of lm-eval, and on copies with one thing changed."""

import json
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from in_process import evaluate_into
from lm_eval_command import BIN

from copyspec_eval.cli import main
from copyspec_eval.reports.runs import read_run

Samples = list[dict[str, Any]]

STOCK_TASKS = {
    "extracted": {
        "output_type": "generate_until",
        "repeats": 2,
        "doc_to_target": "a",
        "generation_kwargs": {"until": [], "do_sample": False},
        "metric_list": [{"metric": "exact_match"}],
        "filter_list": [
            {
                "name": name,
                "filter": [
                    {"function": "regex", "regex_pattern": pattern},
                    {"function": "take_first"},
                ],
            }
            for name, pattern in (("letter", "([a-z])"), ("line", "(.*)"))
        ],
    },
    "chosen": {
        "output_type": "multiple_choice",
        "doc_to_target": 0,
        "doc_to_choice": ["a", "b"],
        "metric_list": [{"metric": "acc"}],
    },
}


@pytest.fixture(scope="module")
def stock_tasks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Tasks of lm-eval's own kind: answers drawn twice and filtered twice, and a choice."""
    folder = tmp_path_factory.mktemp("stock_tasks")
    data = folder / "data.jsonl"
    data.write_text("".join(json.dumps({"question": f"{i}+{i}?"}) + "\n" for i in range(3)))
    for name, config in STOCK_TASKS.items():
        common = {
            "task": name,
            "dataset_path": "json",
            "dataset_kwargs": {"data_files": str(data), "cache_dir": str(folder / "cache")},
            "test_split": "train",
            "doc_to_text": "{{question}}",
        }
        (folder / f"{name}.yaml").write_text(json.dumps(common | config))
    return folder


@pytest.fixture(scope="module")
def runs(
    byte_model: Path, questions: Path, stock_tasks: Path, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, Path]:
    """The folders of a run of `--model copyspec`, and of the same by `--model hf`."""
    folder = tmp_path_factory.mktemp("runs")
    more: dict[str, Any] = {
        "tasks": ["mt_redundant", *STOCK_TASKS],
        "include": [stock_tasks],
        "gen_kwargs": "max_gen_toks=24",
    }
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("COPYSPEC_DATA_DIR", str(questions))
        for backend, options in (("copyspec", "dtype=float64,gamma=2"), ("hf", "dtype=float64")):
            evaluate_into(folder / backend, byte_model, options, backend, **more)
    return {backend: folder / backend for backend in ("copyspec", "hf")}


@pytest.fixture
def compare(capsys: pytest.CaptureFixture[str]) -> Callable[[Path, Path], dict[str, Any]]:
    """What `compare --json` prints; its exit code says the same."""

    def run(a: Path, b: Path) -> dict[str, Any]:
        code = main(["compare", str(a), str(b), "--json"])
        figures = dict(json.loads(capsys.readouterr().out))
        assert code == (0 if figures["equal"] else 1)
        return figures

    return run


def test_both_backends_agree(runs):
    command = [str(BIN / "copyspec-eval"), "compare", *map(str, runs.values())]
    result = subprocess.run(command, capture_output=True, text=True)
    assert (result.returncode, result.stderr) == (0, "")
    tables = [line for line in result.stdout.splitlines() if line.startswith("|")]
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in tables]
    assert [row for row in rows if row[-1] == "text"] == [
        ["extracted", "1", "6", "6", "0", "0", "0", "0", "0", "text"],
        ["mt_redundant", "1", "6", "6", "0", "0", "0", "0", "0", "text"],
        ["mt_redundant", "2", "6", "6", "0", "0", "0", "0", "0", "text"],
    ]
    assert [row[1] for row in rows if row[5] == "McNemar"] == [
        "acc,none",
        "exact_match,letter",
        "exact_match,line",
        "answered,none",
    ]
    assert result.stdout.endswith("\n\nidentical: 18 of 18 answers\n")


def test_our_runs_are_compared_by_tokens(runs, compare):
    ours = runs["copyspec"]
    figures = compare(ours, ours)
    assert {turn["compared_by"] for turn in figures["turns"]} == {"tokens"}
    assert figures["counts"]["identical"] == 18
    assert read_run(ours).dtype == "torch.float64"


def test_records_alone_are_enough(runs, tmp_path, compare):
    shutil.copy(runs["copyspec"] / "turns.jsonl", tmp_path)
    for backend, level in (("copyspec", "tokens"), ("hf", "text")):
        figures = compare(tmp_path, runs[backend])
        assert figures["counts"]["identical"] == figures["counts"]["answers"] == 18
        assert {turn["compared_by"] for turn in figures["turns"]} == {level}


def without_an_answer(samples: Samples) -> None:
    del samples[1]["arguments"]["gen_args_1"], samples[1]["resps"][1]


def with_another_answer(samples: Samples) -> None:
    samples[2]["resps"][0] = ["another"]


def with_another_prompt(samples: Samples) -> None:
    samples[3]["arguments"]["gen_args_0"]["arg_0"] += " "


def with_another_conversation(samples: Samples) -> None:
    with_another_answer(samples)
    samples[2]["arguments"]["gen_args_1"]["arg_0"] += " "


def with_a_moved_document(samples: Samples) -> None:
    samples.insert(1, samples.pop(4))


@pytest.mark.parametrize(
    ("change", "differences"),
    [
        (without_an_answer, [(1, 2, "missing")]),
        (with_another_answer, [(2, 1, "diverged")]),
        (with_another_prompt, [(3, 1, "other_prompt")]),
        (with_another_conversation, [(2, 1, "diverged"), (2, 2, "not_comparable")]),
        (with_a_moved_document, []),
    ],
)
@pytest.mark.parametrize("backend", ["copyspec", "hf"])
def test_one_change_is_named(runs, tmp_path, compare, backend, change, differences):
    """In a copy of either run, against ours."""
    copied = tmp_path / "copy"
    shutil.copytree(runs[backend], copied)
    [log] = copied.glob("*/samples_mt_redundant_*.jsonl")
    samples = [json.loads(line) for line in log.open(encoding="utf-8")]
    change(samples)
    log.write_text("".join(json.dumps(row) + "\n" for row in samples))
    figures = compare(runs["copyspec"], copied)
    assert [(d["doc_id"], d["turn"], d["status"]) for d in figures["differences"]] == differences
    assert {d["task"] for d in figures["differences"]} <= {"mt_redundant"}
    assert figures["equal"] is not bool(differences)
    assert figures["counts"]["identical"] == 18 - len(differences)
