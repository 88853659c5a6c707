"""Equivalence and speed-up as a user measures them: paired runs, `compare`, `compare --rescore`."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from doubles import one_wrong_in
from in_process import evaluate_into, rows_in
from tiny_models import save_with_tokenizer, with_twins

from copyspec_eval import cli
from copyspec_eval.decoding import sequence as sequence_module
from copyspec_eval.reports.leaderboard import leaderboard
from copyspec_eval.reports.recorded import read_runs
from copyspec_eval.reports.summary import METRICS

FIVE = ("llama", "qwen2", "gemma2", "phi3", "gpt_neox")


@pytest.fixture
def compare(capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, dict[str, Any]]]:
    """The command's exit code and what it prints."""

    def run(a: Path, b: Path, *more: str) -> tuple[int, dict[str, Any]]:
        capsys.readouterr()
        code = cli.main(["compare", str(a), str(b), "--json", *more])
        return code, json.loads(capsys.readouterr().out)

    return run


@pytest.mark.usefixtures("our_questions")
def test_a_wrong_token_in_fifty_is_caught(byte_model, tmp_path, compare, monkeypatch):
    """By `paired` at its place, and by `compare` with and without the model."""
    options = "dtype=float32,gamma=1"
    long: dict[str, Any] = {"gen_kwargs": "max_gen_toks=150", "limit": 3}
    evaluate_into(tmp_path / "sound", byte_model, options, **long)
    monkeypatch.setattr(sequence_module, "verify", one_wrong_in(50))
    evaluate_into(tmp_path / "broken", byte_model, options, **long)
    figures = evaluate_into(tmp_path / "paired", byte_model, options + ",paired=true", **long)
    monkeypatch.undo()

    assert figures["identical,none"] < 1
    differing = [row for row in rows_in(tmp_path / "paired") if row.token_ids != row.answer_ids]
    assert differing
    for row in differing:
        baseline = row.baseline
        assert baseline is not None
        assert baseline.difference is not None
        assert row.token_ids is not None
        assert baseline.agreement == "diverged"
        at = baseline.difference.position
        assert row.token_ids[:at] == baseline.token_ids[:at]
        tokens = baseline.difference.token_id, baseline.difference.baseline_token_id
        assert row.token_ids[at] == tokens[0] != tokens[1]
        assert any(start <= at < start + length for start, length, _ in row.spans)

    for more in ((), ("--rescore", str(byte_model))):
        code, figures = compare(tmp_path / "sound", tmp_path / "broken", *more)
        assert code == 1
        assert figures["counts"]["diverged"] > 0
        assert figures["counts"]["near_tie"] == 0
    margins, diverged = figures["margins"], figures["counts"]["diverged"]
    assert sum(margins.values()) == margins["more"] == diverged
    code, figures = compare(tmp_path / "sound", tmp_path / "paired")
    assert (code, figures["counts"]["identical"]) == (0, 6), "it goes on from the baseline"


@pytest.mark.usefixtures("our_questions")
def test_paired_figures_of_batches(byte_model, tmp_path):
    options = "dtype=float32,paired=true"
    shown = evaluate_into(tmp_path / "run", byte_model, options, batch_size=4)
    [file] = (tmp_path / "run").glob("*/results_*.json")
    figures = json.loads(file.read_text())["config"]["copyspec"]["figures"]["mt_redundant"]
    assert shown["identical,none"] == 1
    by_turn = [figures[f"turn {turn}"]["speedup"] for turn in (1, 2)]
    assert min(by_turn) <= shown["speedup,none"] <= max(by_turn)
    # Too few of the answers end for an interval.
    names = {each.name for each in METRICS if not each.name.startswith("speedup_ended")}
    for turn in (1, 2):
        values = figures[f"turn {turn}"]
        assert values.keys() >= names
        rates = values["tokens_per_second"], values["baseline_tokens_per_second"]
        assert values["speedup"] == pytest.approx(rates[0] / rates[1])
        for name in ("speedup", "speedup_median"):
            assert values[f"{name}_low"] <= values[name] <= values[f"{name}_high"]
        assert (values["identical"], values["near_tie"], values["diverged"]) == (1, 0, 0)
    assert {row.batch_size for row in rows_in(tmp_path / "run")} == {4}
    [run] = json.loads((tmp_path / "run" / "manifest.json").read_text())["runs"]
    assert run["spec"]["drafting"]["paired"] is True
    assert run["spec"]["drafting"]["steps"] in ("invariant", "fixed width")


@pytest.fixture(scope="module")
def models(data_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """Folders of random models of the size of the Qwen2.5 vocabulary, with a repetition penalty.

    In float32 every second token is nearly the one before, so that there are near-ties there too.
    """
    folder = tmp_path_factory.mktemp("models")

    def saved(model_type: str, twins: bool) -> Path:
        path = folder / f"{model_type}-{twins}"
        if not path.exists():
            change = with_twins if twins else None
            save_with_tokenizer(model_type, data_dir / "tokenizers" / "qwen2.5", path, change)
        return path

    return saved


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["float64", "float32", "bfloat16"])
def test_copying_changes_nothing_on_forty_questions(models, tmp_path, compare, dtype):
    model = models("qwen2", False)
    ways = {"none": "drafter=none", "copyspec": "gamma=1", "suffix": "drafter=suffix"}
    ways |= {"store": "store=true", "draft model": f"draft_model={model}"}
    if dtype == "float64":  # which leaves no near-ties to random weights
        ways["tree"] = "drafter=suffix,store=true,tree=true,exact=false"
        evaluate_into(tmp_path / "hf", model, "dtype=float64", "hf", limit=40)
    for name, way in ways.items():
        evaluate_into(tmp_path / name, model, f"dtype={dtype},{way}", limit=40)
    for name in sorted({path.name for path in tmp_path.iterdir()} - {"none"}):
        code, figures = compare(tmp_path / name, tmp_path / "none")
        counts = figures["counts"]
        assert (code, counts["identical"], counts["answers"]) == (0, 80, 80), name
        drafts = [row.counts.drafts or {} for row in rows_in(tmp_path / name)]
        accepted = sum(each.num_accepted for of_row in drafts for each in of_row.values())
        assert accepted > 20 or name == "hf", name


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["float64", "float32", "bfloat16"])
@pytest.mark.parametrize("model_type", FIVE)
def test_differences_from_hf_are_near_ties(models, tmp_path, compare, model_type, dtype):
    model = models(model_type, twins=dtype == "float32")
    evaluate_into(tmp_path / "hf", model, f"dtype={dtype}", backend="hf", limit=8)
    evaluate_into(tmp_path / "copyspec", model, f"dtype={dtype}", limit=8)
    code, figures = compare(tmp_path / "hf", tmp_path / "copyspec", "--rescore", str(model))
    counts = figures["counts"]
    assert code == 0
    assert counts["diverged"] == counts["missing"] == counts["other_prompt"] == 0
    if dtype == "float64":
        assert counts["identical"] == counts["answers"] == 16
    if dtype == "float32":
        assert counts["near_tie"] > 4, "else this test shows nothing"


@pytest.mark.slow
def test_an_arm_against_itself_is_as_fast_as_itself(models, tmp_path):
    options = "dtype=bfloat16,drafter=none,exact=false,paired=true"
    figures = evaluate_into(tmp_path, models("qwen2", False), options, limit=40)
    assert figures["speedup,none"] == pytest.approx(1, rel=0.10)


def test_two_shards_are_the_whole(byte_model, our_questions, tmp_path):
    options = "dtype=float64,paired=true"
    parts = {"whole": range(6), "even": range(0, 6, 2), "odd": range(1, 6, 2)}
    for name, part in parts.items():
        asked: Any = {} if name == "whole" else {"samples": {"mt_redundant": list(part)}}
        evaluate_into(tmp_path / name, byte_model, options, **asked)
    whole, split = (
        leaderboard(read_runs([tmp_path / name for name in names]))
        for names in (["whole"], ["even", "odd"])
    )
    assert not [note for note in split.notes if "exact mode" not in note]
    timed = [m for m in METRICS if any("seconds" in column for column in m.columns)]
    names = {"date", *(name for metric in timed for name in metric.names)}
    untimed = [name for name in whole.lines if name not in names]
    assert "tokens_per_forward" in untimed
    assert split.lines[untimed].equals(whole.lines[untimed])
    assert split.settings.equals(whole.settings)
