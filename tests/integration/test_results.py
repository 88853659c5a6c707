"""What is committed in results/ is what its runs give, and tells of no one's machine."""

from __future__ import annotations

import json
from pathlib import Path

from copyspec_eval import records
from copyspec_eval.reports import benchmark, overview
from copyspec_eval.reports.files import LEADERBOARD
from copyspec_eval.reports.leaderboard import leaderboard
from copyspec_eval.reports.leaderboard_forms import RENDERERS
from copyspec_eval.reports.recorded import read_recorded

REPOSITORY = Path(__file__).resolve().parents[2]
RESULTS = REPOSITORY / "results"
QUICKSTART = RESULTS / "quickstart"  # left by scripts/quickstart, and not committed


def test_the_leaderboard_is_that_of_the_runs() -> None:
    folders = sorted(path.parent for path in RESULTS.glob("*/manifest.json"))
    found = leaderboard([read_recorded(folder) for folder in folders if folder != QUICKSTART])
    assert found.lines
    assert all(line.scores for line in found.lines)
    for name, form in LEADERBOARD.items():
        assert (RESULTS / name).read_text(encoding="utf-8") == RENDERERS[form](found), name


def test_the_readme_shows_the_committed_run() -> None:
    found = leaderboard([read_recorded(RESULTS / "copyspec-tiny-suffix")])
    assert overview.render(found) in (REPOSITORY / "README.md").read_text(encoding="utf-8")


def test_the_bench_is_that_of_its_figures_and_the_readmes() -> None:
    result = json.loads((RESULTS / "bench" / "bench.json").read_text())
    assert (RESULTS / "bench" / "BENCH.md").read_text() == benchmark.render(result)
    assert benchmark.table(result) in (REPOSITORY / "README.md").read_text()


def test_nothing_tells_of_a_machine() -> None:
    for path in RESULTS.rglob("*"):
        if path.is_file() and QUICKSTART not in path.parents:
            text = path.read_text(encoding="utf-8")
            assert not [part for part in ("/home/", "/root/", "/tmp/") if part in text], path
            assert str(REPOSITORY) not in text, path


def test_every_copied_piece_is_the_text_of_its_source() -> None:
    copied = 0
    for path in sorted(RESULTS.glob("copyspec-tiny-*/turns.jsonl")):
        for row in records.read(path):
            assert row.prompt is not None
            whole = row.prompt + "".join(text for text, _, _ in row.segments)
            for text, start, end in row.segments:
                assert start < 0 or whole[start:end] == text
                copied += start >= 0
    assert copied > 1000
