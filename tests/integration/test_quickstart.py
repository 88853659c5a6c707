"""The two minutes that a newcomer gives: the script, the embedded model, and its training."""

import json
import math
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from in_process import evaluate_into
from lm_eval.utils import make_table
from printed_table import printed_table

from copyspec_eval.paths import TINY, model_path
from copyspec_eval.reports.comparison import compare_answers, fails
from copyspec_eval.reports.runs import read_run

REPOSITORY = Path(__file__).resolve().parents[2]
TASKS = ("quickstart_redundant", "quickstart_self_correction", "quickstart_extractive")


def test_the_script_prints_the_screen_that_the_readme_shows(tmp_path):
    """All of it but the installation: this environment stands in for the one it makes."""
    for name in ("scripts", "autoload"):
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(REPOSITORY / name, tmp_path / name, ignore=ignored)
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
    lines = result.stdout.splitlines()
    assert sum(max(1, math.ceil(len(line) / 80)) for line in lines) <= 40, "in 80 columns"
    assert lines[-1].endswith(", 6 of 6 answers identical → results/quickstart/report.html")
    printed = printed_table(result.stdout)
    assert {row["identical"] for row in printed} == {"100%"}
    assert (output / "turns.jsonl").read_bytes().count(b"\n") == 6
    assert len(json.loads((output / "manifest.json").read_text())["runs"]) == 1

    page = (REPOSITORY / "docs" / "measuring.md").read_text(encoding="utf-8")
    example = page.partition("<!-- output of the quickstart -->\n```\n")[2].partition("```\n")[0]
    for actual, shown in zip(printed, printed_table(example), strict=True):
        assert [*actual] == [*shown]
        assert (actual["task"], actual["turn"]) == (shown["task"], shown["turn"])
    for name in ("manifest.json", "report.html"):
        assert (output / name).exists()
        assert f"`{name}`" in page


@pytest.mark.parametrize("can_write", [True, False])
def test_the_last_line_says_what_was_won_and_where_the_page_is(tmp_path, can_write):
    number, page = r"\d+\.\d\d", tmp_path / "report.html"
    if not can_write:
        page.mkdir()
    tasks: Any = {"tasks": TASKS[:1], "gen_kwargs": None, "limit": 2}
    evaluate_into(tmp_path, Path(model_path(TINY)), "paired=true", **tasks)
    [file] = tmp_path.glob("*/results_*.json")
    table = make_table(json.loads(file.read_text()))
    assert "|redundant|" in table
    assert printed_table(table)[0]["task"] == "quickstart_redundant"
    where = rf" → {re.escape(str(page))}" if can_write else r" \(no page: .+\)"
    gain = rf"{number}× (faster|as fast) \(95 %: {number} to {number}\)"
    last = table.splitlines()[-1]
    assert re.fullmatch(rf"{gain}, 4 of 4 answers identical{where}", last), table
    assert page.is_dir() or page.stat().st_size > 10_000


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
    [file] = (tmp_path / "copyspec").glob("*/results_*.json")
    results = json.loads(file.read_text())["results"]
    redundant, correction, extractive = (results[task] for task in TASKS)
    assert redundant["exact_turn2,none"] >= 0.85
    assert correction["acc_turn3,none"] >= 0.85
    assert extractive["verbatim,none"] >= 0.85
    assert min(redundant["speedup,none"], correction["speedup,none"]) >= 1.1
    assert {each["identical,none"] for each in (redundant, correction, extractive)} == {1}
