"""`copyspec-eval compare` on real runs of lm-eval."""

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from in_process import evaluate_into

from copyspec_eval.cli import main
from copyspec_eval.reports.runs import read_run


def regex(name: str, pattern: str) -> dict[str, Any]:
    search = {"function": "regex", "regex_pattern": pattern}
    return {"name": name, "filter": [search, {"function": "take_first"}]}


STOCK_TASKS = {
    "extracted": {
        "output_type": "generate_until",
        "repeats": 2,
        "doc_to_target": "a",
        "generation_kwargs": {"until": [], "do_sample": False},
        "metric_list": [{"metric": "exact_match"}],
        "filter_list": [regex("letter", "([a-z])"), regex("line", "(.*)")],
    },
    "chosen": {
        "output_type": "multiple_choice",
        "doc_to_target": 0,
        "doc_to_choice": ["a", "b"],
        "metric_list": [{"metric": "acc"}],
    },
}
"""Tasks of lm-eval's own kind: answers drawn twice and filtered twice, and a choice."""
COMPARE = """
import sys
from copyspec_eval.cli import main
code = main(["compare", *sys.argv[1:]])
print({"torch", "transformers", "lm_eval"} & sys.modules.keys() or "light", file=sys.stderr)
sys.exit(code)
"""


@pytest.fixture(scope="module")
def runs(
    byte_model: Path, questions: Path, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, Path]:
    """The folders of a run of `--model copyspec`, and of the same by `--model hf`."""
    folder = tmp_path_factory.mktemp("runs")
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
    more: dict[str, Any] = {"tasks": ["mt_redundant", *STOCK_TASKS], "include": [folder]}
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("COPYSPEC_DATA_DIR", str(questions))
        for backend, options in (("copyspec", "dtype=float64,gamma=2"), ("hf", "dtype=float64")):
            place = folder / backend
            evaluate_into(place, byte_model, options, backend, gen_kwargs="max_gen_toks=24", **more)
    return {backend: folder / backend for backend in ("copyspec", "hf")}


def test_both_backends_agree(runs):
    """In a process that loads neither torch nor lm-eval."""
    command = [sys.executable, "-c", COMPARE, *map(str, runs.values())]
    result = subprocess.run(command, capture_output=True, text=True)
    assert (result.returncode, result.stderr) == (0, "light\n")
    tables = [line for line in result.stdout.splitlines() if line.startswith("|")]
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in tables]
    assert [row for row in rows if row[-1] == "text"] == [
        ["extracted", "1", "6", "6", "0", "0", "0", "0", "0", "text"],
        ["mt_redundant", "1", "6", "6", "0", "0", "0", "0", "0", "text"],
        ["mt_redundant", "2", "6", "6", "0", "0", "0", "0", "0", "text"],
    ]
    metrics = ["acc,none", "exact_match,letter", "exact_match,line", "answered,none"]
    assert [row[1] for row in rows if row[5] == "McNemar"] == metrics
    assert result.stdout.endswith("\n\nidentical: 18 of 18 answers\n")


def test_tokens_are_compared_where_both_have_them_and_records_alone_are_enough(
    runs, tmp_path, capsys
):
    ours = runs["copyspec"]
    assert read_run(ours).dtype == "torch.float64"
    shutil.copy(ours / "turns.jsonl", tmp_path)
    for one, other, level in (
        (ours, ours, "tokens"),
        (tmp_path, ours, "tokens"),
        (tmp_path, runs["hf"], "text"),
    ):
        assert main(["compare", str(one), str(other), "--json"]) == 0
        figures = json.loads(capsys.readouterr().out)
        assert figures["counts"]["identical"] == figures["counts"]["answers"] == 18
        assert {turn["compared_by"] for turn in figures["turns"]} == {level}
