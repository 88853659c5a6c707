"""`copyspec-eval judge` of one run, or of two; its ratings in reports, as FastChat has them."""

import json
from argparse import Namespace
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from judge_server import JudgeServer, Reply, shown_by_fastchat, write_judge_data
from recorded_runs import manifest, turn, write_run
from run_folders import write_conversations

from copyspec_eval import openai_api
from copyspec_eval.cli import main
from copyspec_eval.reports.conversations import read_ratings
from copyspec_eval.reports.leaderboard import leaderboard
from copyspec_eval.reports.leaderboard_forms import as_markdown, csv_files
from copyspec_eval.reports.recorded import read_recorded
from copyspec_eval.sources import read_jsonl

KEY = "sk-secret-0123456789"
QUESTIONS = [
    {"question_id": number, "category": category, "turns": [f"Q{number}", f"R{number}"]}
    for number, category in ((1, "writing"), (2, "math"), (3, "coding"), (4, "writing"))
]


@pytest.fixture(autouse=True)
def surroundings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("fastchat.llm_judge.common")
    monkeypatch.setenv("COPYSPEC_DATA_DIR", str(write_judge_data(tmp_path / "data")))
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.setattr(openai_api, "MAX_RETRIES", 1)


@pytest.fixture
def run(tmp_path: Path) -> Path:
    for task in ("mt_bench", "mt_redundant"):
        write_conversations(tmp_path / "run", task, QUESTIONS, f"{task} {{question_id}}.{{turn}}")
    return tmp_path / "run"


def command(run: Path, server: JudgeServer, *more: str) -> list[str]:
    return ["judge", str(run), "--model", "org/judge", "--base-url", server.url, *more]


def judged(run: Path, task: str = "mt_redundant", kind: str = "single") -> Path:
    return run / "fastchat" / task / "model_judgment" / f"org__judge_{kind}.jsonl"


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
    assert "judged, and" not in printed
    for task in ("mt_bench", "mt_redundant"):
        file = judged(run, task)
        ours = [means(printed)[task, turn, "all"] for turn in ("1", "2", "both")]
        assert shown_by_fastchat(file) == pytest.approx(ours, abs=0.005)
        by_turn = {(row["question_id"], row["turn"]): row for row in rows(file)}
        assert len(by_turn) == 8
        assert list(by_turn[2, 1]) == [
            *("question_id", "model", "judge", "user_prompt"),
            *("judgment", "score", "turn", "tstamp"),
        ]
        assert by_turn[2, 1]["judge"] == ["org/judge", "single-math-v1"]
        assert by_turn[2, 1]["user_prompt"] == f"Q2|{task} 2.1|ref R1"


def test_what_is_unjudged_is_no_zero_and_can_be_asked_for_again(run, capfd):
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
        _, _, unjudged = printed.out.partition("Not judged, and in no mean: 6;")
        assert [line for line in unjudged.splitlines()[1:] if line] == [f"- {r}" for r in reasons]
        assert ("mt_bench", "1", "all") not in means(printed.out), "none of these is a score"
        assert {row["turn"] for row in rows(judged(run, "mt_bench"))} == {2}
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
    questions = [row.fields for row in read_jsonl(folder / "question.jsonl")][::5]
    write_conversations(tmp_path, "mt_bench", questions, "{{{question_id}}} {turn}\u2028")
    with JudgeServer(numbered) as server:
        assert main(command(tmp_path, server)) == 0
    templates = common.load_judge_prompts(str(folder / "judge_prompts.jsonl"))
    rows = [row.fields for row in read_jsonl(folder / "reference_answer_gpt-4.jsonl")]
    references = {row["question_id"]: row for row in rows}
    wanted: list[Any] = []

    def answer(model: str, conversation: Any, **_: Any) -> str:
        wanted.append(conversation.to_openai_api_messages())
        return "Rating: [[7]]"

    monkeypatch.setattr(common, "chat_completion_openai", answer)
    for question in questions:
        number, has_reference = (
            question["question_id"],
            question["category"] in common.NEED_REF_CATS,
        )
        answers = {"choices": [{"turns": [f"{{{number}}} {turn}\u2028" for turn in (1, 2)]}]}
        for end in ("", "-multi-turn"):
            template = templates[f"single-{'math-' if has_reference else ''}v1{end}"]
            judge = common.Judge("gpt-4", template, multi_turn=bool(end))
            reference = references[number] if has_reference else None
            common.run_judge_single(question, answers, judge, reference, bool(end))
    sent = [body["messages"] for body in server.requests]
    assert sorted(map(str, sent)) == sorted(map(str, wanted))
    assert len(wanted) == 32


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


def choose(runs: tuple[Path, Path], server: JudgeServer, *more: str) -> int:
    return main(command(runs[0], server, "--against", str(runs[1]), *more))


def test_both_orders_are_judged_and_counted_as_fastchat_does(runs, capsys):
    show_result = pytest.importorskip("fastchat.llm_judge.show_result")
    with JudgeServer(prefers_good) as server:
        assert choose(runs, server) == 0
        printed = capsys.readouterr().out
        assert choose(runs, server) == 0
        assert server.asked.total() == 16, "eight pairs in both orders, and nothing twice"
    assert [line.replace("|", " ").split() for line in printed.splitlines()[2:]] == [
        ["mt_redundant", "1", "4", "0", "3", "0", "1", "87.5%"],
        ["mt_redundant", "2", "4", "0", "2", "0", "2", "75.0%"],
    ]
    capsys.readouterr()
    names = {"model_list": None, "baseline_model": None, "bench_name": ""}
    file = str(judged(runs[0], kind="pair-bad"))
    show_result.display_result_pairwise(Namespace(input_file=file, **names))
    shown = next(line for line in capsys.readouterr().out.splitlines() if line.startswith("good"))
    assert shown.split()[1:4] == ["5", "0", "3"]
    assert float(shown.split()[-1]) == 0.8125


def test_references_are_shown_where_they_hold(runs):
    with JudgeServer(prefers_good) as server:
        choose(runs, server)
        math = [prompt for prompt in server.asked if "Q2" in prompt]
        assert ["ref R1" in prompt for prompt in math] == ["|R2|" not in p for p in math]
        choose(runs, server, "--all-references")
        assert any("|ref R1, R2" in prompt for prompt in server.asked)
    assert judged(runs[0], kind="pair-all-references-bad").exists()


def test_what_has_no_verdict_is_asked_again(runs, capsys):
    def at_first(prompt: str, times: int) -> Reply:
        if "Q2" in prompt and times <= 3:
            return Reply("I cannot say.")
        return prefers_good(prompt, times)

    with JudgeServer(at_first) as server:
        assert choose(runs, server) == 1
        assert "- no verdict in 3 judgements: mt_redundant 2 turn 1" in capsys.readouterr().out
        assert choose(runs, server) == 0


@pytest.mark.parametrize(
    "change", [{"g1_user_prompt": "another"}, {"model_1": "other"}, {"question_id": 9}], ids=str
)
def test_verdicts_on_other_answers_are_refused(change, runs, capsys):
    with JudgeServer(prefers_good) as server:
        assert choose(runs, server) == 0
        file = judged(runs[0], kind="pair-bad")
        file.write_text(json.dumps(rows(file)[0] | change))
        assert choose(runs, server) == 1
    assert "move the file away" in capsys.readouterr().err


def test_what_cannot_be_compared_is_one_line(runs, tmp_path, capsys):
    other = [{**question, "question_id": 50} for question in QUESTIONS]
    write_conversations(runs[1] / "x", "mt_redundant", other, "bad")
    file = tmp_path / "data" / "mt_bench" / "reference_answer_gpt-4.jsonl"
    with JudgeServer(prefers_good) as server:
        assert choose((runs[0], runs[1] / "x"), server) == 1
        assert "no question that both runs answered" in capsys.readouterr().err
        file.write_text('{"question_id": "x", "choices": []}\n')
        assert choose(runs, server) == 1
        assert not server.asked
    error = capsys.readouterr().err
    assert f"{file}:1: question_id is 'x', not a number; copy the file again" in error


SCORES = {(1, 1): 7.0, (1, 2): 5.5, (2, 1): 9.0, (2, 2): 3.0, (4, 1): 8.0}


def ratings(scores: dict[tuple[int, int], float], **changes: Any) -> list[dict[str, Any]]:
    """Rows of FastChat's, for the answers of `recorded`."""
    judge = {"model": "org__model", "judge": ["gpt-4", "single-v1"], "judgment": "", "tstamp": 1.0}
    rows = []
    for (number, which), score in scores.items():
        row = judge | {"question_id": number, "turn": which, "score": score}
        rows.append(row | {"user_prompt": f"Judge: mt_bench {number}.{which}"} | changes)
    return rows


def write(folder: Path, rows: Iterable[dict[str, Any]], judge: str = "gpt-4_single") -> Path:
    file = folder / "fastchat" / "mt_bench" / "model_judgment" / f"{judge}.jsonl"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return file


@pytest.fixture
def recorded(run: Path) -> Path:
    """With the records of its answers to MT-Bench."""
    rows = [
        replace(turn("r", doc, number), category=str(question["category"]), task="mt_bench")
        for doc, question in enumerate(QUESTIONS)
        for number in (1, 2)
    ]
    return write_run(run, rows, manifest("r"))


def test_ratings_stand_in_every_form_of_a_report_with_fastchats_means(recorded):
    file = write(recorded, ratings(SCORES) + ratings({(4, 2): -1}))
    write(recorded, ratings({(1, 1): 2.0}), "gpt-4_single-all-references")
    board = leaderboard([read_recorded(recorded)])
    by_turn = board.by_turn["rating_gpt-4"]
    ours = [by_turn[0, 1], by_turn[0, 2], board.lines.at[0, "rating_gpt-4"]]
    assert ours == pytest.approx([8.0, 4.25, 6.5])
    assert shown_by_fastchat(file) == pytest.approx(ours, abs=1e-6)
    assert board.by_category.at[(0, 1, "writing"), "rating_gpt-4"] == 7.5
    text = as_markdown(board)
    assert "rating by gpt-4 6.50, rating by gpt-4-all-references 2.00" in text
    assert "| rating" in text.partition("## By turn")[2]
    assert all("rating_gpt-4" in table.partition("\n")[0] for table in csv_files(board).values())


@pytest.mark.parametrize(
    "changes",
    [
        *({"user_prompt": "Judge: another answer"}, {"question_id": 99}, {"turn": 3}, {"turn": 0}),
        *({"score": 11}, {"score": "high"}, {"score": None}),
    ],
    ids=str,
)
def test_what_is_no_rating_of_these_answers_is_left_out_of_reports(recorded, changes):
    write(recorded, ratings(SCORES) + ratings({(1, 1): 1.0}, **changes))
    notes: list[str] = []
    assert {(r.question_id, r.turn): r.score for r in read_ratings(recorded, notes)} == SCORES
    [note] = notes
    assert note.endswith("no ratings of this run's answers, left out: 1 rows")


def test_a_run_without_samples_has_no_ratings(tmp_path):
    write_run(tmp_path, [turn("r", 0, 1)], manifest("r"))
    write(tmp_path, ratings(SCORES))
    notes: list[str] = []
    assert read_ratings(tmp_path, notes) == []
    assert "its ratings are left out" in notes[0]
