"""What is committed in results/ is what its runs give, and names no one's machine."""

import json
from pathlib import Path

import pytest
from benchmarks import decoders, engine_pairs, one_token_step, report, step_profile
from printed_table import printed_table
from recorded_runs import board

from copyspec_eval import records
from copyspec_eval.records import segments
from copyspec_eval.reports.leaderboard_forms import as_json, as_markdown, csv_files, overview

REPOSITORY = Path(__file__).resolve().parents[2]
RESULTS = REPOSITORY / "results"
SPEED = REPOSITORY / "docs" / "speed.md"
QUICKSTART = RESULTS / "quickstart"  # left by scripts/quickstart, and not committed


def test_the_leaderboard_is_that_of_the_runs():
    folders = sorted(path.parent for path in RESULTS.glob("*/manifest.json"))
    actual = board(*(folder for folder in folders if folder != QUICKSTART))
    assert {*actual.lines["model"]} == {"copyspec-tiny", "SmolLM2-135M-Instruct"}
    # None is of a run that was cut short, or of rows that cannot be read.
    usual = ("kept separate", "exact mode gives the", "looped tokens are nearly")
    assert [note for note in actual.notes if not any(each in note for each in usual)] == []
    assert {*actual.lines["diverged"]} == {0}
    texts = {"LEADERBOARD.md": as_markdown(actual), "leaderboard.json": as_json(actual)}
    for name, text in (texts | csv_files(actual)).items():
        assert (RESULTS / name).read_text(encoding="utf-8") == text, name


def shown(run: str, is_wide: bool = False) -> str:
    return overview(board(RESULTS / run), is_wide).partition("note: ")[0].rstrip()


def test_the_quickstarts_page_shows_its_run():
    page = (REPOSITORY / "docs" / "measuring.md").read_text(encoding="utf-8")
    assert shown("copyspec-tiny-suffix") in page


def test_the_readme_shows_the_real_run():
    rows = printed_table(shown("smollm2-suffix", is_wide=True))
    readme = (REPOSITORY / "README.md").read_text(encoding="utf-8")
    assert len(rows) == 9
    for figures in rows:
        names = ("task", "turn", "speed-up (ended)", "speed-up (all)", "identical")
        assert f"| {' | '.join(figures[name] for name in names)} |" in readme


@pytest.mark.parametrize("processor", ["epyc-zen4", "epyc-zen1", "epyc-zen1-float32", "xeon"])
def test_decoders_are_those_of_their_figures_and_the_page(processor):
    folder = RESULTS / "decoders" / processor
    compared, rows = (
        json.loads((folder / "decoders.json").read_text()),
        decoders.read(folder / "runs.jsonl"),
    )
    assert (folder / "DECODERS.md").read_text() == decoders.render(compared, rows)
    assert decoders.ratios(rows) in SPEED.read_text()
    has_rates = processor in ("epyc-zen4", "epyc-zen1-float32")
    assert (decoders.table(rows) in SPEED.read_text()) == has_rates


@pytest.mark.parametrize(
    ("processor", "decoders_named"),
    [
        ("epyc-zen1", {"copyspec"}),
        ("epyc-zen1-float32", {"copyspec", "copyspec-vllm", "hf", "vllm"}),
    ],
)
def test_with_and_without_drafts_the_answers_are_the_same(processor, decoders_named):
    """Of ours always, and in float32 also of `generate` and vLLM, as the page says."""
    rows = decoders.read(RESULTS / "decoders" / processor / "runs.jsonl")
    assert {row["decoder"] for row in rows} == decoders_named
    assert len({row["answers_sha256"] for row in rows}) == 1


def test_the_profile_of_a_step_is_that_of_its_figures_and_the_page():
    folder = RESULTS / "decoders" / "epyc-zen4"
    profile = json.loads((folder / "profile.json").read_text())
    assert (folder / "PROFILE.md").read_text() == step_profile.render(profile)
    assert step_profile.table(profile["rows"]) in SPEED.read_text()


def test_audits_of_sound_engines_are_those_of_the_page():
    folder = RESULTS / "audit"
    result = json.loads((folder / "pairs.json").read_text())
    assert (folder / "PAIRS.md").read_text() == engine_pairs.render(result)
    counts = [pair["counts"] for pair in result["pairs"].values()]
    answers, identical, near = (
        sum(each[name] for each in counts) for name in ("answers", "identical", "near_tie")
    )
    assert answers == identical + near >= 200, "no fault"
    text = f"Of {answers} answers, {identical} are identical and {near} near-ties"
    assert text in (REPOSITORY / "docs" / "audit.md").read_text(encoding="utf-8")


def test_the_bench_is_that_of_its_figures_and_the_page():
    bench = RESULTS / "bench"
    result, step = (json.loads((bench / f"{name}.json").read_text()) for name in ("bench", "step"))
    assert (bench / "BENCH.md").read_text() == report.render(result)
    assert (bench / "STEP.md").read_text() == one_token_step.render(step)
    assert report.table(result) in SPEED.read_text()


def test_the_page_on_gpus_shows_what_was_measured():
    page = (REPOSITORY / "docs" / "gpu.md").read_text(encoding="utf-8")
    gpu = RESULTS / "gpu"
    parts = json.loads((gpu / "gpu_check.json").read_text())["parts"]
    by_kind = {
        (row["batch_size"], row["width"], row["steps"]): row for row in parts["steps"]["steps"]
    }
    eager, captured = (by_kind[1, 16, how] for how in ("eager", "captured"))
    usual = f"{parts['steps']['generate_ms']:.1f} | {eager['bound_ms']:.1f}"
    steps = f"{eager['ms']:.1f} | {captured['ms']:.1f} ({captured['seconds']} s)"
    assert f"| Qwen2.5-7B | {steps} | {usual} |" in page
    alone = by_kind[1, 1, "captured"]["ms"]
    assert f"{captured['ms'] / alone - 1:.0%} longer".replace("%", " %") in page
    assert f"({captured['ms']:.1f} and {alone:.1f} ms)" in page
    control = {
        row["dtype"]: (row["equal"], row["compared"]) for row in parts["drafters"]["control"]
    }
    assert control == {"float32": (0, 468), "bfloat16": (310, 468)}
    assert {(r["equal"], r["compared"]) for r in parts["drafters"]["equality"]} == {(468, 468)}
    assert f"{parts['memory']['peak_bytes'] / 1e9:.1f} GB with 8 rows" in page
    for batch_size, name in ((1, "smollm2-suffix-h200"), (8, "smollm2-suffix-h200-batch-8")):
        for row in printed_table(shown(name, is_wide=True)):
            assert row["identical"] == "100%"
            names = ("turn", "tokens/s", "baseline tokens/s", "speed-up (ended)", "speed-up (all)")
            assert f"| {batch_size} | {' | '.join(row[name] for name in names)} |" in page


def test_nothing_names_a_machine():
    for path in RESULTS.rglob("*"):
        if path.is_file() and QUICKSTART not in path.parents:
            text = path.read_text(encoding="utf-8")
            assert not [part for part in ("/home/", "/root/", "/tmp/") if part in text], path
            assert str(REPOSITORY) not in text, path


def test_what_the_rows_say_can_be_recomputed():
    """Equality from token ids, or where these are not shared from their hashes; copied texts."""
    compared = copied = 0
    for path in sorted({*RESULTS.glob("*/turns.jsonl")} - {QUICKSTART / "turns.jsonl"}):
        notes: list[str] = []
        for row in records.read(path, notes):
            answer = row.token_ids or row.tokens_sha256
            if row.baseline and answer:
                baseline = row.baseline.token_ids or row.baseline.tokens_sha256
                assert (answer == baseline) is (row.baseline.agreement == "identical")
                compared += 1
            context = row.prompt + row.answer
            for text, *source in segments(row.answer or row.text, row.span_characters):
                if source and source[0] >= 0:
                    assert context[slice(*source)] == text
                    copied += 1
        assert not notes
    assert compared > 500
    assert copied > 1000
