"""Figures in README and docs are those of committed files."""

import json
import re
import shlex
import shutil
from pathlib import Path

import pytest
from benchmarks import replays

from copyspec_eval.cli import main
from copyspec_eval.reports.recorded import read_recorded
from copyspec_eval.reports.summary import figures_by
from copyspec_eval.reports.tables import gains
from copyspec_eval.reports.turns import frame

REPOSITORY = Path(__file__).resolve().parents[2]
RESULTS = REPOSITORY / "results"


def page(name: str) -> str:
    """A page's text, its lines joined."""
    return " ".join((REPOSITORY / name).read_text(encoding="utf-8").split())


def joined(text: str) -> str:
    return " ".join(text.split())


def test_replays_are_those_of_the_pages():
    rates = replays.read(RESULTS / "replays" / "replays.json")
    assert (RESULTS / "replays" / "REPLAYS.md").read_text() == replays.render(rates)
    assert joined(replays.table(rates)) in page("docs/drafters.md")
    assert joined(replays.earlier_table(rates)) in page("docs/drafters.md")
    assert joined(replays.overview(rates)) in page("README.md")


def test_the_readmes_claim_is_that_of_its_tables():
    rates = replays.read(RESULTS / "replays" / "replays.json")
    default = [each["total"] for name, each in rates.items() if name[:2] == ("suffix", "")]
    run = read_recorded(RESULTS / "smollm2-suffix")
    ended = figures_by(frame(run.records), ["task", "turn"])["speedup_ended"]
    claim = (
        f"{min(default):.1f} to {max(default):.1f} tokens per pass on answers of 7B and 8B models, "
        f"and {ended.min():.1f}× to {ended.max():.1f}× faster on a small one"
    )
    assert claim in page("README.md")


def test_the_sentence_of_a_run():
    [sentence] = gains(read_recorded(RESULTS / "smollm2-suffix").records)
    assert f"`{sentence} →" in page("docs/measuring.md")


def test_the_share_of_reading_in_a_step():
    step = json.loads((RESULTS / "bench" / "step.json").read_text())
    share = step["figures"]["reading of the step"]
    assert f"takes {share:.0%}".replace("%", " %") in page("docs/speed.md")


@pytest.mark.parametrize("table", ["gamma", "copied-tokens"])
def test_tables_of_the_paper_are_those_of_their_runs(table, tmp_path, monkeypatch, capsys):
    """By the command of `scripts/real_results`, which finds its runs finished."""
    shutil.copytree(RESULTS / "paper", tmp_path / "results" / "paper")
    (tmp_path / "models").mkdir()
    monkeypatch.chdir(tmp_path / "models")
    script = (RESULTS.parent / "scripts" / "real_results").read_text("utf-8")
    [given] = re.findall(
        r'copyspec-eval paper "\$table" (.*) >/dev/null', script.replace("\\\n", "")
    )
    words = shlex.split(given.replace('"$bfloat16"', "dtype=bfloat16"))
    assert main(["paper", table, *words]) == 0
    assert capsys.readouterr().out == (RESULTS / "paper" / f"{table}.md").read_text("utf-8")
