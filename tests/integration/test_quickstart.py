"""The two minutes that a newcomer gives: the script, the embedded model, and its training."""

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from in_process import evaluate_into
from lm_eval_command import BIN

from copyspec_eval.paths import TINY, model_path
from copyspec_eval.reports.comparison import compare_answers, fails
from copyspec_eval.reports.runs import read_run

REPOSITORY = Path(__file__).resolve().parents[2]
CACHES = shutil.ignore_patterns("__pycache__")
TASKS = ("quickstart_redundant", "quickstart_self_correction", "quickstart_extractive")


def rows(text: str) -> list[list[str]]:
    """Cells of a Markdown table's lines, without the rule under the headers."""
    lines = [line.strip().strip("|") for line in text.splitlines() if line.startswith("|")]
    cells = [[cell.strip() for cell in line.split("|")] for line in lines]
    return [cells[0], *cells[2:]]


def test_the_script_prints_the_screen_that_the_readme_shows(tmp_path):
    """All of it but the installation: this environment stands in for the one it makes."""
    for name in ("scripts", "autoload"):
        shutil.copytree(REPOSITORY / name, tmp_path / name, ignore=CACHES)
    for name in ("constraints.txt", "pyproject.toml"):
        shutil.copy(REPOSITORY / name, tmp_path)
    (tmp_path / ".venv").mkdir()
    (tmp_path / ".venv" / "bin").symlink_to(Path(sys.executable).parent)
    stamp = "cat constraints.txt pyproject.toml autoload/* >.venv/installed"
    subprocess.run(["bash", "-c", stamp], cwd=tmp_path, check=True)
    output = tmp_path / "results" / "quickstart"
    output.mkdir(parents=True)
    (output / "turns.jsonl").write_text("of an earlier run")

    script = [str(tmp_path / "scripts" / "quickstart"), "--limit", "1"]
    result = subprocess.run(script, cwd="/", capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    assert "Answering" in result.stderr, "a progress bar"
    headers, *lines = rows(result.stdout)
    assert {line[headers.index("answers")] for line in lines} == {"1"}
    assert {line[headers.index("identical")] for line in lines} == {"100%"}
    assert (output / "turns.jsonl").read_bytes().count(b"\n") == 6
    assert len(json.loads((output / "manifest.json").read_text())["runs"]) == 1

    page = (REPOSITORY / "docs" / "measuring.md").read_text(encoding="utf-8")
    shown = page.partition("<!-- output of the quickstart -->\n```\n")[2].partition("```")[0]
    shown_headers, *shown_lines = rows(shown)
    assert shown_headers == headers
    assert [line[:2] for line in shown_lines] == [line[:2] for line in lines]
    files = {path.name for path in output.iterdir()}
    assert {"turns.jsonl", "manifest.json", "report.html"} <= files
    assert all(f"`{name}`" in page for name in files if name in ("report.html", "manifest.json"))


def printed(folder: Path) -> str:
    command = [str(BIN / "lm_eval"), "--model", "copyspec", "--tasks", "quickstart_redundant"]
    command += ["--model_args", "pretrained=copyspec-tiny,paired=true", "--apply_chat_template"]
    command += ["--limit", "2", "--output_path", str(folder)]
    result = subprocess.run(command, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    return result.stdout


def test_a_page_that_cannot_be_written_ends_no_run(tmp_path):
    (tmp_path / "report.html").mkdir()
    assert "answers identical (no page: " in printed(tmp_path).splitlines()[-1]


def test_the_last_line_says_what_was_won_and_where_the_page_is(tmp_path):
    number, page = r"\d+\.\d\d", tmp_path / "report.html"
    gain = rf"{number}× (faster|as fast) \(95 %: {number} to {number}\)"
    last = rf"{gain}, 4 of 4 answers identical → {re.escape(str(page))}"
    output = printed(tmp_path)
    assert re.fullmatch(last, output.splitlines()[-1]), output
    assert "| quickstart_redundant |" in output
    assert page.stat().st_size > 10_000


def figures_of(folder: Path) -> dict[str, dict[str, float]]:
    [file] = folder.glob("*/results_*.json")
    results: dict[str, dict[str, float]] = json.loads(file.read_text())["results"]
    return results


@pytest.mark.slow
def test_the_embedded_model_on_what_it_has_not_seen(tmp_path):
    """Its scores, the same by every way of decoding, and what copying makes of its speed."""
    paired: Any = {"tasks": TASKS, "gen_kwargs": None, "confirm_run_unsafe_code": True}
    model = Path(model_path(TINY))
    for name, backend, options in (
        ("copyspec", "copyspec", "exact=false,paired=true"),
        ("none", "copyspec", "drafter=none"),
        ("hf", "hf", "dtype=float32"),
    ):
        evaluate_into(tmp_path / name, model, options, backend, **paired)
    runs = {name: read_run(tmp_path / name) for name in ("copyspec", "none", "hf")}
    for name in ("none", "hf"):
        assert runs[name].scores.keys() == set(TASKS)
        pairs = compare_answers(runs["copyspec"], runs[name])
        assert not fails(pairs)
        assert len(pairs) == 48 * 2 + 40 * 3 + 40
    redundant, correction, extractive = (figures_of(tmp_path / "copyspec")[task] for task in TASKS)
    assert redundant["exact_turn2,none"] >= 0.85
    assert correction["acc_turn3,none"] >= 0.85
    assert extractive["verbatim,none"] >= 0.85
    assert min(redundant["speedup,none"], correction["speedup,none"]) >= 1.4
    assert {each["identical,none"] for each in (redundant, correction, extractive)} == {1}


@pytest.mark.parametrize(
    ("steps", "shape"),
    [
        (100, ("--conversations", "1", "--layers", "1")),
        pytest.param(200, (), marks=pytest.mark.slow),
    ],
    ids=["small", "as-it-is"],
)
def test_training_lowers_the_loss_and_records_how_it_was_done(tmp_path, steps, shape):
    script = [sys.executable, str(REPOSITORY / "scripts" / "train_tiny"), "--steps", str(steps)]
    result = subprocess.run([*script, *shape], cwd=tmp_path, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    printed = json.loads(result.stdout.splitlines()[-1])
    assert printed["steps"] == steps
    assert printed["final_loss"] < 0.6 * printed["first_loss"]
    folder = tmp_path / "runs" / "tiny"
    manifest = json.loads((folder / "manifest.json").read_text())
    assert manifest | printed == manifest
    assert manifest["settings"]["seed"] == 0
    assert len(json.loads((folder / "losses.json").read_text())["losses"]) == steps // 50


def test_the_weights_record_how_they_were_made():
    folder = Path(model_path(TINY))
    manifest = json.loads((folder / "manifest.json").read_text())
    assert manifest["steps"] == manifest["settings"]["steps"]
    assert manifest["final_loss"] < 0.1 < manifest["first_loss"]
    assert len(manifest["commit"]) >= 40
    assert "dirty" not in manifest["commit"]
    assert "train_tiny" in manifest["command"]
    assert sum(file.stat().st_size for file in folder.iterdir()) < 12e6
