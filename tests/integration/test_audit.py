"""`copyspec-eval audit` as a user runs it: two servers, failures, and what the files say."""

import json
import re
import shlex
import shutil
import subprocess
import sys
import time
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from engine_server import Engine, EngineServer
from planted_faults import FaultyEngine

from copyspec_eval.cli import main

NUM_ANSWERS = 12  # of six documents with two turns


def audit(a: str, b: str, folder: Path, *more: str) -> int:
    command = ["audit", "--a", a, "--b", b, "--tasks", "mt_bench", "--out", str(folder)]
    return main([*command, "--concurrency", "1,4", *more])


def result(folder: Path) -> dict[str, Any]:
    written: dict[str, Any] = json.loads((folder / "findings.json").read_text())
    return written


@pytest.mark.usefixtures("our_questions")
def test_equal_servers_are_identical(tmp_path, capsys):
    with EngineServer(Engine()) as a, EngineServer(Engine()) as b:
        assert audit(a.side, b.side, tmp_path) == 0
        assert a.count + b.count <= 1.3 * 2 * NUM_ANSWERS
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "IDENTICAL: B gives the same answers as A"
    assert len(lines) <= 10
    assert result(tmp_path)["counts"]["identical"] == NUM_ANSWERS
    assert not list(ElementTree.parse(tmp_path / "junit.xml").iter("failure"))
    assert "IDENTICAL" in (tmp_path / "audit.html").read_text()


@pytest.mark.usefixtures("our_questions")
def test_a_fault_fails_and_comes_with_what_reproduces_it(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "a-key-that-nobody-may-read")
    with EngineServer(Engine()) as a, EngineServer(FaultyEngine("a token twice")) as b:
        assert audit(a.side, b.side, tmp_path) == 1
        printed = capsys.readouterr().out
        assert printed.startswith("BROKEN")
        assert "bug_report.zip" in printed
        failures = list(ElementTree.parse(tmp_path / "junit.xml").iter("failure"))
        assert [each.get("message") for each in failures] != []
        assert all("corruption" in str(each.text) for each in failures)
        with zipfile.ZipFile(tmp_path / "bug_report.zip") as archive:
            archive.extractall(tmp_path / "report")
        [case, *_] = json.loads((tmp_path / "report" / "cases.json").read_text())
        assert case["readings"]
        assert case["answer_a"] != case["answer_b"]
        program = [sys.executable, "-I", str(tmp_path / "report" / "reproduce.py")]
        done = subprocess.run(program, capture_output=True, text=True)
        assert done.returncode == 1, done.stderr
        assert done.stdout.count("as in the audit") == 2
        assert "NOT" not in done.stdout
        done = subprocess.run([*program, a.url, a.url], capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
    everything = b"".join(path.read_bytes() for path in tmp_path.rglob("*") if path.is_file())
    for secret in (b"a-key-that-nobody-may-read", b"very-secret-key"):
        assert secret not in everything


PAGE = (Path(__file__).parents[2] / "docs" / "audit.md").read_text("utf-8")
[COMMAND] = re.findall(r"<!-- with two servers -->\n```bash\n(.+?)```", PAGE, re.DOTALL)
[IN_CI] = re.findall(r"^ +(copyspec-eval audit(?: .+\\\n)+ .+)", PAGE, re.MULTILINE)
PROBLEM = {
    **{"task_id": "HumanEval/0", "prompt": "def same(x):\n", "entry_point": "same", "atol": 0},
    **{"canonical_solution": "    return x\n", "base_input": [[1]], "plus_input": [[2]]},
}


@pytest.mark.parametrize(("block", "tasks"), [(COMMAND, 2), (IN_CI, 1)], ids=["bash", "in CI"])
def test_the_pages_commands(block, tasks, questions, tmp_path, monkeypatch, capsys):
    """As printed, but for the ports: from two running servers to the page in one command."""
    data = Path(shutil.copytree(questions, tmp_path / "data"))
    (data / "humaneval").mkdir()
    (data / "humaneval" / "HumanEvalPlus.jsonl").write_text(json.dumps(PROBLEM) + "\n")
    monkeypatch.setenv("COPYSPEC_DATA_DIR", str(data))
    monkeypatch.chdir(tmp_path)
    with EngineServer(Engine()) as a, EngineServer(Engine()) as b:
        for port, server in (("8000", a), ("8001", b)):
            block = block.replace(f"http://127.0.0.1:{port}/v1", server.url)
        program, *words = shlex.split(block.replace("\\\n", " ").replace("$MODEL", "M"))
        assert program == "copyspec-eval"
        assert main(words) == 0
    written = result(tmp_path / "audit")
    assert len({each["task"] for each in written["settings"]}) == tasks
    assert {each["concurrency"] for each in written["settings"]} <= {1, 8, 32}
    assert (tmp_path / "audit" / "audit.html").exists()
    assert (tmp_path / "audit" / "junit.xml").exists()
    assert len(capsys.readouterr().out.splitlines()) <= 10


def dies(handler: Any, number: int) -> bool:
    if number < 5:
        return False
    handler.connection.close()
    return True


def hangs(handler: Any, number: int) -> bool:
    if number >= 5:
        time.sleep(2)
    return False


def sends_garbage(handler: Any, number: int) -> bool:
    if number >= 5:
        handler.send(b"<html>\x1b[1mBad gateway</html>")
    return number >= 5


def sends_no_completion(handler: Any, number: int) -> bool:
    if number >= 5:
        handler.send(b'{"choices": [{"message": {"content": 7}}]}')
    return number >= 5


def refuses(handler: Any, number: int) -> bool:
    if number >= 5:
        handler.send(b'{"error": "no such model"}', 404)
    return number >= 5


@pytest.mark.usefixtures("our_questions")
@pytest.mark.parametrize(
    ("failure", "words"),
    [
        (dies, ""),
        (hangs, "no answer in 1 s"),
        (sends_garbage, "not JSON"),
        pytest.param(sends_no_completion, "not a completion", marks=pytest.mark.slow),
        pytest.param(refuses, "no such model", marks=pytest.mark.slow),
    ],
)
def test_a_server_that_fails_leaves_what_was_answered(failure, words, tmp_path, capsys):
    with EngineServer(Engine()) as a, EngineServer(Engine()) as b:
        side = b.side.replace("timeout=5", "timeout=1")
        b.misbehave = failure
        assert audit(a.side, side, tmp_path) == 2
        errors = [each for each in capsys.readouterr().err.splitlines() if "error: " in each]
        assert len(errors) == 1
        assert b.url in errors[0]
        assert words in errors[0]
        assert "\x1b" not in errors[0]
        kept_rows = (tmp_path / "replies.jsonl").read_text().count("\n")
        assert kept_rows == 6 + 5
        assert f"{kept_rows} answers are saved in {tmp_path}" in errors[0]
        b.misbehave, before = (lambda handler, number: False), a.count
        assert audit(a.side, side, tmp_path) == 0
        assert result(tmp_path)["counts"]["identical"] == NUM_ANSWERS
        again = sum(each for name, each in result(tmp_path)["requests"].items() if name != "answer")
        assert a.count - before <= 6 + again, "nothing was asked twice"


@pytest.mark.usefixtures("our_questions")
def test_a_busy_server_is_asked_again_when_it_says_so(tmp_path):
    def is_busy(handler: Any, number: int) -> bool:
        if number % 3 == 0:
            handler.send(b"{}", 429)
        return number % 3 == 0

    with EngineServer(Engine()) as a, EngineServer(Engine()) as b:
        b.misbehave = is_busy
        assert audit(a.side, b.side, tmp_path) == 0


@pytest.mark.usefixtures("our_questions")
def test_a_torn_journal_goes_on_and_another_audit_is_refused(tmp_path, capsys):
    with EngineServer(Engine()) as a, EngineServer(Engine()) as b:
        assert audit(a.side, b.side, tmp_path) == 0
        rows = (tmp_path / "replies.jsonl").read_bytes()
        (tmp_path / "replies.jsonl").write_bytes(rows[: len(rows) // 2])
        before = a.count, b.count
        assert audit(a.side, b.side, tmp_path) == 0
        assert 0 < b.count - before[1] < NUM_ANSWERS
        capsys.readouterr()
        assert audit(a.side, b.side, tmp_path, "--limit", "1") == 2
    assert "its audit has a different limit; choose another --out" in capsys.readouterr().err


WRONG: list[tuple[str, Callable[[str], list[str]]]] = [
    ("give base_url=", lambda side: ["--b", "base_url=http://127.0.0.1:1/v1"]),
    ("bose_url", lambda side: ["--b", "bose_url=x,base_url=http://127.0.0.1:1/v1,model=M"]),
    ("http://127.0.0.1:1/v1", lambda side: ["--b", "base_url=http://127.0.0.1:1/v1,model=M"]),
    ("is not JSON", lambda side: ["--b", 'vllm,speculative_config={"method"}']),
    ("numbers", lambda side: ["--concurrency", "1,two"]),
    ("at least 1", lambda side: ["--concurrency", "0"]),
    ("no_such_task", lambda side: ["--tasks", "no_such_task"]),
    ("use copyspec-eval compare", lambda side: ["--a", ".", "--b", "."]),
]


@pytest.mark.usefixtures("our_questions")
@pytest.mark.parametrize(("words", "arguments"), WRONG, ids=[words for words, _ in WRONG])
def test_wrong_use_is_one_line_and_exit_code_2(words, arguments, tmp_path, capsys):
    with EngineServer(Engine()) as server:
        assert audit(server.side, server.side, tmp_path, *arguments(server.side)) == 2
    errors = [each for each in capsys.readouterr().err.splitlines() if "error: " in each]
    assert len(errors) == 1
    assert words in errors[0]


@pytest.mark.slow
def test_local_models_and_folders_of_earlier_runs(byte_model, our_questions, tmp_path, capsys):
    more = ("--gen-kwargs", "max_gen_toks=12", "--limit", "2", "--rescore", str(byte_model))
    local = f"hf,pretrained={byte_model},dtype=float32"
    ours = f"copyspec,pretrained={byte_model},dtype=float32"
    assert audit(local, ours, tmp_path / "local", *more) == 0
    printed = capsys.readouterr().out
    assert f"copyspec-eval exactness {byte_model}" in printed or printed.startswith("IDENTICAL")
    run = ["--tasks", "mt_bench", "--limit", "2", "--apply_chat_template", "--log_samples"]
    run += ["--model", "copyspec", "--model_args", f"pretrained={byte_model},dtype=float32"]
    run += ["--gen_kwargs", "max_gen_toks=12", "--output_path", str(tmp_path / "run")]
    program = [sys.executable, "-m", "copyspec_eval", "run", *run]
    subprocess.run(program, check=True, capture_output=True)
    assert audit(str(tmp_path / "run"), ours, tmp_path / "folder", "--limit", "2") == 0
    assert result(tmp_path / "folder")["counts"]["identical"] == 4
    assert audit(str(tmp_path / "run"), str(tmp_path / "run"), tmp_path / "both") == 2
    assert "use copyspec-eval compare" in capsys.readouterr().err
