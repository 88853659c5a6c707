"""`copyspec-eval judge` against a server, with what FastChat makes of the same files."""

import json
from pathlib import Path
from typing import Any

import pytest
from judge_server import JudgeServer, Reply, shown_by_fastchat, write_judge_data
from run_folders import write_conversations

from copyspec_eval.cli import main
from copyspec_eval.reports import export
from copyspec_eval.reports.runs import read_run
from copyspec_eval.scoring import chat, judging
from copyspec_eval.sources import read_jsonl

KEY = "sk-secret-0123456789"
QUESTIONS = [
    {"question_id": number, "category": category, "turns": [f"Q{number}", f"R{number}"]}
    for number, category in ((1, "writing"), (2, "math"), (3, "coding"), (4, "writing"))
]


@pytest.fixture(autouse=True)
def surroundings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COPYSPEC_DATA_DIR", str(write_judge_data(tmp_path / "data")))
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.setattr(judging, "WAIT_SECONDS", 0.001)


@pytest.fixture
def run(tmp_path: Path) -> Path:
    for task in ("mt_bench", "mt_redundant"):
        write_conversations(tmp_path / "run", task, QUESTIONS, f"{task} {{question_id}}.{{turn}}")
    return tmp_path / "run"


def command(run: Path, server: JudgeServer, *more: str) -> list[str]:
    return ["judge", str(run), "--model", "org/judge", "--base-url", server.url, *more]


def judgement_file(run: Path, task: str) -> Path:
    return run / "fastchat" / task / "model_judgment" / "org__judge_single.jsonl"


def rows(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text("utf-8").splitlines()]


def numbered(prompt: str, times: int) -> Reply:
    """A rating that depends on the prompt."""
    return Reply(f"Because.\u2028 Rating: [[{1 + sum(prompt.encode()) % 19 / 2}]]")


def means(printed: str) -> dict[tuple[str, str, str], float]:
    """Ratings of our table by task, turn and category."""
    cells = (line.strip("|").split("|") for line in printed.splitlines() if line[:1] == "|")
    table = [[cell.strip() for cell in row] for row in cells][2:]
    return {(row[0], row[1], row[2]): float(row[5]) for row in table if row[5]}


def test_means_are_those_of_fastchat(run, capsys):
    num_written = []

    def judge(prompt: str, times: int) -> Reply:
        num_written.append(sum(len(rows(path)) for path in run.rglob("*_single.jsonl")))
        return numbered(prompt, times)

    with JudgeServer(judge) as server:
        assert main(command(run, server, "--concurrency", "1")) == 0
    assert num_written == [*range(16)], "each is written before the next is asked"
    printed = capsys.readouterr().out
    assert "njudged, and" not in printed
    for task in ("mt_bench", "mt_redundant"):
        path = judgement_file(run, task)
        ours = [means(printed)[task, turn, "all"] for turn in ("1", "2", "both")]
        assert shown_by_fastchat(path) == pytest.approx(ours, abs=0.005)
        judged = {(row["question_id"], row["turn"]): row for row in rows(path)}
        assert len(judged) == 8
        assert list(judged[2, 1]) == [
            *("question_id", "model", "judge", "user_prompt"),
            *("judgment", "score", "turn", "tstamp"),
        ]
        assert judged[2, 1]["judge"] == ["org/judge", "single-math-v1"]
        assert judged[2, 1]["user_prompt"] == f"Q2|{task} 2.1|ref R1"


def test_what_is_unjudged_is_no_zero_and_can_be_asked_for_again(run, monkeypatch, capfd):
    monkeypatch.setattr(chat, "MAX_RETRIES", 1)
    echo = json.dumps({"error": {"message": f"limit of {KEY}"}})
    trouble = {
        "Q1|mt_bench 1.1": Reply(echo, 429),
        "Q2|mt_bench 2.1|ref R1": Reply("not\nhere", 503),
        "Q3|mt_bench 3.1": Reply(f"bad key {KEY}", 401),
        "Q4|mt_bench 4.1": Reply("I would rather not."),
        "Q1|mt_redundant 1.1": Reply("x" * 190 + KEY, 400),
        "Q3|mt_redundant 3.1": Reply("\x1b[2J\x1b]0;x\x07no", 400),
    }
    reasons = [
        'HTTP 429: {"error": {"message": "limit of not-recorded"}}: mt_bench 1 turn 1',
        "HTTP 503: not here: mt_bench 2 turn 1",
        "HTTP 401: bad key not-recorded: mt_bench 3 turn 1",
        "no rating in 3 judgements: mt_bench 4 turn 1",
        f"HTTP 400: {'x' * 190}: mt_redundant 1 turn 1",
        "HTTP 400: \\u001b[2J\\u001b]0;x\\u0007no: mt_redundant 3 turn 1",
    ]
    with JudgeServer(lambda prompt, n: trouble.get(prompt) or numbered(prompt, n)) as server:
        assert main(command(run, server)) == 1
        printed = capfd.readouterr()
        assert [server.asked[prompt] for prompt in trouble] == [2, 2, 1, 3, 1, 1]
        _, _, unjudged = printed.out.partition("Unjudged, and in no mean: 6;")
        assert [line for line in unjudged.splitlines()[1:] if line] == [f"- {r}" for r in reasons]
        assert ("mt_bench", "1", "all") not in means(printed.out), "none of these is a score"
        assert {row["turn"] for row in rows(judgement_file(run, "mt_bench"))} == {2}
        written = [file.read_text("utf-8") for file in run.rglob("*") if file.is_file()]
        assert not any(KEY in text for text in (printed.out, printed.err, *written))
        trouble.clear()
        server.asked.clear()
        assert main(command(run, server)) == 0
        assert server.asked.total() == 6
    assert len(means(capfd.readouterr().out)) == 2 * 12


def test_the_judge_reads_what_fastchat_sends(tmp_path, data_dir, monkeypatch, capsys):
    common = pytest.importorskip("fastchat.llm_judge.common")
    folder = data_dir / "mt_bench"
    monkeypatch.setenv("COPYSPEC_DATA_DIR", str(data_dir))
    questions = [row.fields for row in read_jsonl(folder / "question.jsonl")]
    write_conversations(tmp_path, "mt_bench", questions, "{{{question_id}}} {turn}\u2028")
    with JudgeServer(numbered) as server:
        assert main(command(tmp_path, server)) == 0
    export.write_fastchat(read_run(tmp_path), tmp_path)
    answers = common.load_model_answers(str(tmp_path / "mt_bench" / "model_answer"))["org__model"]
    templates = common.load_judge_prompts(str(folder / "judge_prompts.jsonl"))
    references = {
        row.fields["question_id"]: row.fields
        for row in read_jsonl(folder / "reference_answer_gpt-4.jsonl")
    }
    wanted: list[Any] = []

    def answer(model: str, conversation: Any, **_: Any) -> str:
        wanted.append(conversation.to_openai_api_messages())
        return "Rating: [[7]]"

    monkeypatch.setattr(common, "chat_completion_openai", answer)
    for question in questions:
        number = question["question_id"]
        has_reference = question["category"] in common.NEED_REF_CATS
        for end in ("", "-multi-turn"):
            template = templates[f"single-{'math-' if has_reference else ''}v1{end}"]
            judge = common.Judge("gpt-4", template, multi_turn=bool(end))
            reference = references[number] if has_reference else None
            common.run_judge_single(question, answers[number], judge, reference, bool(end))
    sent = [body["messages"] for body in server.requests]
    assert sorted(map(str, sent)) == sorted(map(str, wanted))
    assert len(wanted) == 160
