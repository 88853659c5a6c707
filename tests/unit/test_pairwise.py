"""Which of two runs' answers a judge prefers, as FastChat plays and counts it."""

import json
from argparse import Namespace
from pathlib import Path

import pytest
from judge_server import JudgeServer, Reply, write_judge_data
from run_folders import write_conversations

from copyspec_eval.cli import main
from copyspec_eval.scoring import chat, judging

QUESTIONS = [
    {"question_id": number, "category": category, "turns": [f"Q{number}", f"R{number}"]}
    for number, category in ((1, "writing"), (2, "math"), (3, "writing"))
]


@pytest.fixture(autouse=True)
def surroundings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("fastchat.llm_judge.common")
    monkeypatch.setenv("COPYSPEC_DATA_DIR", str(write_judge_data(tmp_path / "data")))
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.setattr(chat, "MAX_RETRIES", 0)
    monkeypatch.setattr(judging, "WAIT_SECONDS", 0.001)


@pytest.fixture
def runs(tmp_path: Path) -> tuple[Path, Path]:
    for name in ("good", "bad"):
        write_conversations(tmp_path / name, "mt_redundant", QUESTIONS, name)
    return tmp_path / "good", tmp_path / "bad"


def prefers_good(prompt: str, _: int) -> Reply:
    """Whichever place it has; question 1 goes to the first place, turn 2 of 3 is a tie."""
    if "Q1" in prompt:
        return Reply("[[A]]")
    if "Q3|R3" in prompt:
        return Reply("[[C]]")
    return Reply("[[A]]" if prompt.index("good") < prompt.index("bad") else "[[B]]")


def judge(runs: tuple[Path, Path], server: JudgeServer, *more: str) -> int:
    first, second = map(str, runs)
    command = ["judge", first, "--against", second, "--model", "org/judge"]
    return main([*command, "--base-url", server.url, *more])


def file_of(run: Path) -> Path:
    return run / "fastchat" / "mt_redundant" / "model_judgment" / "org__judge_pair-bad.jsonl"


def test_both_orders_are_judged_and_counted_as_fastchat_does(runs, capsys):
    show_result = pytest.importorskip("fastchat.llm_judge.show_result")
    with JudgeServer(prefers_good) as server:
        assert judge(runs, server) == 0
        assert sum(server.asked.values()) == 12, "six pairs in both orders"
        printed = capsys.readouterr().out
        assert judge(runs, server) == 0
        assert sum(server.asked.values()) == 12, "nothing twice"
    assert [line.replace("|", " ").split() for line in printed.splitlines()[2:]] == [
        ["mt_redundant", "1", "3", "0", "2", "0", "1", "83.3%"],
        ["mt_redundant", "2", "3", "0", "1", "0", "2", "66.7%"],
    ]
    capsys.readouterr()
    names = {"model_list": None, "baseline_model": None, "bench_name": ""}
    show_result.display_result_pairwise(Namespace(input_file=str(file_of(runs[0])), **names))
    shown = next(line for line in capsys.readouterr().out.splitlines() if line.startswith("good"))
    assert shown.split()[1:4] == ["3", "0", "3"]
    assert float(shown.split()[-1]) == 0.75


def test_references_are_shown_where_they_hold(runs):
    with JudgeServer(prefers_good) as server:
        judge(runs, server)
        math = [prompt for prompt in server.asked if "Q2" in prompt]
        assert ["ref R1" in prompt for prompt in math] == ["|R2|" not in p for p in math]
        judge(runs, server, "--all-references")
        assert any("|ref R1, R2" in prompt for prompt in server.asked)
    assert file_of(runs[0]).with_name("org__judge_pair-all-references-bad.jsonl").exists()


def test_what_has_no_verdict_is_asked_again(runs, capsys):
    def at_first(prompt: str, times: int) -> Reply:
        if "Q2" in prompt and times <= 3:
            return Reply("I cannot say.")
        return prefers_good(prompt, times)

    with JudgeServer(at_first) as server:
        assert judge(runs, server) == 1
        assert "- no verdict in 3 judgements: mt_redundant 2 turn 1" in capsys.readouterr().out
        assert judge(runs, server) == 0


@pytest.mark.parametrize(
    "change", [{"g1_user_prompt": "another"}, {"model_1": "other"}, {"question_id": 9}], ids=str
)
def test_verdicts_on_other_answers_are_refused(change, runs, capsys):
    with JudgeServer(prefers_good) as server:
        assert judge(runs, server) == 0
        first, *_ = file_of(runs[0]).read_text().splitlines()
        file_of(runs[0]).write_text(json.dumps(json.loads(first) | change))
        assert judge(runs, server) == 1
    assert "move the file away" in capsys.readouterr().err


def test_what_cannot_be_compared_is_one_line(runs, tmp_path, capsys):
    other = [{**question, "question_id": 50} for question in QUESTIONS]
    write_conversations(runs[1] / "x", "mt_redundant", other, "bad")
    file = tmp_path / "data" / "mt_bench" / "reference_answer_gpt-4.jsonl"
    with JudgeServer(prefers_good) as server:
        assert judge((runs[0], runs[1] / "x"), server) == 1
        assert "no question that both runs answered" in capsys.readouterr().err
        file.write_text('{"question_id": "x", "choices": []}\n')
        assert judge(runs, server) == 1
        assert not server.asked
    error = capsys.readouterr().err
    assert f"{file}:1: question_id is 'x', not a number; copy the file again" in error
