"""Secrets that a user gives to a run are in nothing that is written about it."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

import pytest
from in_process import evaluate_into
from judge_server import JudgeServer, Reply, write_judge_data

from copyspec_eval.cli import main

OF_ENVIRONMENT = "environment-0123456789"
OF_ARGUMENTS = [f"hf_aB3dE6gH9jK2mN5pQ{number}" for number in range(10)]
FORMS = (
    *("token={}", "--hf_token={}", '{{"token": "{}"}}', '--model_args={{"api_key": "{}"}}'),
    *("base_url=http://user:{}@host/v1", "base_url=http://host?api_key={}", "key={}"),
    *('header={{"Authorization": "Bearer {}"}}', "x=Bearer {}", "password={},and more"),
)


def test_no_planted_secret_is_written(
    byte_model: Path, questions: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = write_judge_data(tmp_path / "data")
    shutil.copytree(questions, data, dirs_exist_ok=True)
    monkeypatch.setenv("COPYSPEC_DATA_DIR", str(data))
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    for name in ("HF_TOKEN", "OPENAI_API_KEY", "WANDB_API_KEY"):
        monkeypatch.setenv(name, OF_ENVIRONMENT)
    planted = [form.format(secret) for form, secret in zip(FORMS, OF_ARGUMENTS, strict=True)]
    monkeypatch.setattr(sys, "argv", ["lm_eval", "--model_args", *planted])
    run, report = tmp_path / "run", tmp_path / "report"
    options = f"token={OF_ARGUMENTS[0]},dtype=float32"
    evaluate_into(run, byte_model, options)

    reply = f"[[5]] {OF_ENVIRONMENT}"
    with JudgeServer(lambda prompt, times: Reply(reply, 200 if times == 1 else 500)) as server:
        assert main(["judge", str(run), "--model", "j", "--base-url", server.url]) == 0
    assert main(["report", str(run), "--out", str(report)]) in (0, None)
    assert main(["export", "fastchat", str(run)]) in (0, None)

    files = [file for folder in (run, report) for file in folder.rglob("*") if file.is_file()]
    assert {"manifest.json", "turns.jsonl", "report.html", "leaderboard.json"} <= {
        file.name for file in files
    }
    [results] = run.rglob("results_*.json")
    assert "***" in str(json.loads(results.read_text())["config"]["model_args"])
    for file in files:
        content = file.read_bytes()
        for secret in (*OF_ARGUMENTS, OF_ENVIRONMENT):
            assert secret.encode() not in content, file
