"""The paper's tables: their runs, and their cells computed by hand."""

import shlex
import subprocess
from collections.abc import Iterable
from dataclasses import asdict, replace
from itertools import pairwise
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from recorded_runs import manifest, turn, write_run
from sample_rows import SPEC

from copyspec_eval.cli import main
from copyspec_eval.errors import DataError, OptionError
from copyspec_eval.paper import layouts, plan, tables
from copyspec_eval.paper.plan import Request
from copyspec_eval.paper.tables import TABLES
from copyspec_eval.records import BaselineTurn, TurnRecord
from copyspec_eval.redaction import shareable
from copyspec_eval.reports.leaderboard import leaderboard
from copyspec_eval.reports.recorded import read_recorded
from copyspec_eval.types import DraftCounts, DraftOptions, TurnCounts

REQUEST = Request("org/model", Path("runs"), draft_model="org/small")


def row(options: DraftOptions, doc: int, number: int, seconds: float, **counts: Any) -> TurnRecord:
    """A turn of ten tokens, which plain decoding gives in ten seconds."""
    of_turn = TurnCounts(num_prompt_tokens=100, num_tokens=10, num_prefill_tokens=1, num_forwards=5)
    counts = {"drafts": {"context": DraftCounts(2, 20, 5)}} | counts
    plain = replace(of_turn, seconds=10.0, decode_seconds=9.0, drafts={})
    made: dict[str, Any] = {"task": "mt_redundant_paper", "drafter": options.label}
    made["baseline"] = BaselineTurn(plain, tuple(range(10)), difference=None)
    made["counts"] = replace(of_turn, seconds=seconds, decode_seconds=seconds, **counts)
    return turn(f"20260101-{options.drafter}-{options.gamma}", doc, number, **made)


def answered(
    folder: Path, run: plan.PlannedRun, arms: Iterable[tuple[DraftOptions, list[TurnRecord]]]
) -> layouts.Answered:
    for options, rows in arms:
        drafting = SPEC.drafting | asdict(options) | {"arms": ["several"]}
        write_run(folder, rows, manifest(rows[0].run_id, drafting=drafting))
    return layouts.Answered(run, leaderboard([read_recorded(folder)]))


def test_the_draft_model_alone_and_behind_copying(tmp_path):
    """Sums by hand: 20 tokens a turn and arm; seconds 4 and 2, then 5 and 1, of two documents."""
    [run, *_] = TABLES["draft-model"].runs(REQUEST)
    of_model = {"model": DraftCounts(3, 9, 6)}
    both = of_model | {"context": DraftCounts(2, 20, 7)}
    seconds = {  # by drafter and γ, turn, document
        ("none", 3): ({1: (4.0, 2.0), 2: (4.0, 4.0)}, of_model),
        ("copyspec", 3): ({1: (3.0, 2.0), 2: (3.0, 2.0)}, both),
        ("copyspec", 5): ({1: (4.0, 1.0), 2: (2.0, 2.0)}, both),
    }
    arms = []
    for (drafter, gamma), (by_turn, drafts) in seconds.items():
        options = DraftOptions(drafter, gamma=gamma, draft_model="org/small", delta=3)
        rows = [
            row(options, doc, number, taken[doc], drafts=drafts)
            for number, taken in by_turn.items()
            for doc in (0, 1)
        ]
        arms.append((options, rows))
    headers, rows_, notes = layouts.draft_models([answered(tmp_path, run, arms)])
    assert headers[:5] == ["data set", "δ", "category", "turn 1: base tokens/s", "draft model"]
    assert headers[7:10] == ["speed-up (ended)", "cut by length", "looped"]
    assert [[*row[1:7], *row[10:14]] for row in rows_] == [
        ["3", "math", "1.00", "2.50", "3.33", "2.50", "1.00", "2.50", "3.33", "5.00"],
        ["3", "writing", "1.00", "5.00", "5.00", "10.00", "1.00", "2.50", "5.00", "5.00"],
        ["3", "average", "1.00", "3.33", "4.00", "4.00", "1.00", "2.50", "4.00", "5.00"],
    ]
    assert notes[:2] == [
        f"MT-Redundant, δ = 3, turn {turn}: copying (γ = 3) + draft model is +{gain}% over the "
        "draft model alone"
        for turn, gain in ((1, 20), (2, 60))
    ]


def test_tau_and_copied_share_per_turn(tmp_path):
    """Turn 1: 5 + 2 of 20 tokens in 2 + 1 attempts; turn 2: 8 + 4 of 20 in 1 + 2."""
    [run] = TABLES["gamma"].runs(REQUEST)
    drafts = {(0, 1): (2, 20, 5), (1, 1): (1, 10, 2), (0, 2): (1, 10, 8), (1, 2): (2, 20, 4)}
    options = DraftOptions("copyspec", gamma=2)
    rows = [
        row(options, *place, 5.0, drafts={"context": DraftCounts(*counts)})
        for place, counts in drafts.items()
    ]
    of_run = answered(tmp_path, run, [(options, rows)])
    by_turn = of_run.board.by_turn
    assert by_turn["copied_share"].tolist() == [7 / 20, 12 / 20]
    assert by_turn["accepted_per_attempt"].tolist() == pytest.approx([7 / 3, 4.0])
    headers, cells, _ = layouts.gammas([of_run])
    assert "looped" in headers
    base, gamma = (dict(zip(headers, line, strict=False)) for line in cells)
    assert (base[""], base["tokens/s"], base["paper (×)"]) == ("base model", "1.00", "35.5")
    assert (gamma[""], gamma["tokens/s"]) == ("γ = 2", "2.00")
    assert (gamma["% copied"], gamma["τ"]) == ("47.50%", "3.17")


def test_prompt_lengths_share_out_the_turns(tmp_path):
    run, _ = TABLES["categories"].runs(REQUEST)
    options = DraftOptions("copyspec")
    rows = [
        row(options, doc, number, 5.0 / number, num_prompt_tokens=length)
        for doc, number, length in ((0, 1, 100), (1, 1, 128), (0, 2, 3000), (1, 2, 200))
    ]
    table = layouts.context_lengths([answered(tmp_path, run, [(options, rows)])])
    assert [line[:4] for line in table.rows] == [
        ["0 to 127", "1", "1.00", "2.00"],
        ["128 to 255", "2", "1.00", "2.67"],
        ["2048 up", "1", "1.00", "4.00"],
    ]


@pytest.mark.parametrize("name", TABLES)
def test_every_table_has_a_plan(name, capsys):
    command = ["paper", name, "--model", "org/model", "org/other", "--draft-model", "org/small"]
    assert main([*command, "--plan", "--limit", "8", "--tokens-per-second", "10"]) == 0
    *commands, estimate = capsys.readouterr().out.splitlines()
    runs = TABLES[name].runs(replace(REQUEST, limit=8))
    models = [(model, run) for model in ("model", "other") for run in runs]
    for line, (model, run) in zip(commands, models, strict=True):
        start = f"copyspec-eval run --model copyspec --model_args pretrained=org/{model}"
        assert line.startswith(start)
        assert {("--tasks", run.task), ("--limit", "8")} <= {*pairwise(line.split())}
    tokens = 2 * sum(run.num_tokens for run in runs)
    assert estimate == f"# about {tokens / 36000:.1f} hours at 10 tokens/s"
    words = [shareable(line).split() for line in commands]
    for option in ("--output_path", "--use_cache"):
        places = {line[line.index(option) + 1] for line in words}
        assert len(places) == len(commands), "each has its own, wherever it is copied to"


def test_options_reach_every_command(capsys):
    options = {"--gen_kwargs": "max_gen_toks=30", "--system_instruction": "Be brief."}
    command = ["paper", "gamma", "--model", "M", "--plan", "--template", "qwen-7b-chat", "--base"]
    for name, value in options.items():
        command += [name.replace("_", "-"), value]
    assert main([*command, "--tasks", "mbpp_evalplus_paper", "humaneval_evalplus_paper"]) == 0
    *commands, _ = map(shlex.split, capsys.readouterr().out.splitlines())
    tasks = [words[words.index("--tasks") + 1] for words in commands]
    assert tasks == ["mbpp_evalplus_paper", "humaneval_evalplus_paper"]
    for words in commands:
        assert "--apply_chat_template" not in words
        for name, value in (options | {"--metadata": '{"template": "qwen-7b-chat"}'}).items():
            assert words[words.index(name) + 1] == value


def test_samples_are_the_papers_and_tables_share_runs():
    runs = {run.task: run for run in TABLES["main"].runs(REQUEST)}
    assert runs["gsm8k_self_correction_paper"].num_documents == 104
    assert runs["cnn_dailymail_extractive_paper"].num_documents == 101
    assert "--limit" not in runs["mt_redundant_paper"].command
    chats = {task: "--apply_chat_template" in run.command for task, run in runs.items()}
    assert not chats["mt_redundant_paper"], "FastChat's template is the prompt"
    assert chats["gsm8k_self_correction_paper"]
    assert all("prefix_cache=0" in run.command[4] for run in runs.values())
    folders = {name: {run.folder for run in table.runs(REQUEST)} for name, table in TABLES.items()}
    assert folders["categories"] <= folders["main"]
    assert not (folders["gamma"] | folders["copied-tokens"]) & folders["main"]
    assert len(folders["draft-model"]) == 3


@pytest.mark.parametrize(
    ("table", "changes", "message"),
    [
        ("gama", {}, r"unknown table of the paper 'gama' \(did you mean 'gamma'\?\)"),
        ("gamma", {"limit": 0}, "--limit must be at least 1, got 0"),
        ("gamma", {"tasks": ["mbpp"]}, "unknown task of the paper 'mbpp'"),
        ("self-correction", {"tasks": ["mt_bench_paper"]}, "gsm8k_self.* alone; leave --tas"),
        ("draft-model", {"draft_model": None}, "needs a draft model; give --draft-model NAME"),
    ],
)
def test_wrong_requests_are_refused(table, changes, message):
    with pytest.raises(OptionError, match=message):
        tables.table_named(table, replace(REQUEST, **changes))
    with pytest.raises(OptionError, match=r"--tokens-per-second must be positive, got 0\.0"):
        tables.planned([], 0.0)


def test_two_models_of_one_name_do_not_share_a_run(tmp_path, monkeypatch):
    requests = [replace(REQUEST, model=f"{owner}/model", out=tmp_path) for owner in ("a", "b")]
    runs = [run for request in requests for run in TABLES["gamma"].runs(request)]
    monkeypatch.setattr(subprocess, "run", Mock(return_value=Mock(returncode=0)))
    with pytest.raises(DataError, match=r"has a run of another command .*; give another --out"):
        plan.make(runs)


def test_a_folder_whose_command_cannot_be_read_is_refused(tmp_path):
    request = replace(REQUEST, out=tmp_path)
    [run] = TABLES["gamma"].runs(request)
    run.folder.mkdir()
    (run.folder / "command.json").write_text("[")
    with pytest.raises(DataError, match=r"cannot be read .* remove the folder"):
        plan.make([run])
