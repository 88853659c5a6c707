"""Whatever a judge's server sends: no rating is lost or made up, and judging ends by itself."""

import json
import threading
import time
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hostile_server import HostileServer, Sent, http
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from judge_server import JudgeServer, Reply, write_judge_data
from run_folders import write_conversations

from copyspec_eval.cli import main
from copyspec_eval.errors import DataError
from copyspec_eval.scoring import chat, judging
from copyspec_eval.scoring.chat import ChatModel
from copyspec_eval.scoring.judging import Conversation, Judged, Match, judge_all

CONVERSATIONS = [Conversation(n, "math", (f"Q{n}", ""), ("A", "")) for n in (1, 2)]
ASKED = [Match((each,), 1, None) for each in CONVERSATIONS]


@pytest.fixture(autouse=True)
def hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("fastchat.llm_judge.common")
    monkeypatch.setattr(judging, "WAIT_SECONDS", 0.001)
    monkeypatch.setattr(chat, "MAX_RETRIES", 0)
    monkeypatch.setattr(chat, "TIMEOUT_SECONDS", 0.5)
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)


def completion(content: Any) -> bytes:
    return json.dumps({"choices": [{"message": {"content": content}}]}).encode()


PROMPTS = [
    {"name": name, "system_prompt": "Be fair.", "prompt_template": "{question}|{answer}"}
    | {"type": "single", "output_format": "[[rating]]"}
    for name in ("single-v1", "single-math-v1", "single-v1-multi-turn", "single-math-v1-multi-turn")
]


def judge(path: Path, url: str = "http://localhost:1") -> Judged:
    return judge_all(ChatModel("j", url), ASKED, PROMPTS, path, ["m"], 1)


def judged(replies: list[Sent], path: Path) -> tuple[dict[Any, float], dict[Any, str]]:
    with HostileServer(replies) as server:
        result = judge(path, server.url)
    return {key: row["score"] for key, row in result.rows.items()}, result.reasons


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=9),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["choices", "message", "content", "a"]), inner)
    ),
    max_leaves=6,
)
RATINGS = ["[[5]]", "[[10]]", "[[1.5]]", "[[11]]", "[[0]]", f"[[{'9' * 400}]]", "[[-3]]", "[[nan]]"]
BODIES = (
    st.binary(max_size=60)
    | VALUES.map(lambda value: json.dumps(value).encode())
    | (st.sampled_from(RATINGS) | st.text(max_size=9) | VALUES).map(completion)
)
HEADERS = st.sampled_from(
    [
        *("Content-Encoding: gzip", "Content-Encoding: br", "Transfer-Encoding: chunked"),
        *("Retry-After: nan", "Content-Type: text/html; charset=none", "Location: http://[", ""),
    ]
)
REPLIES = st.one_of(
    st.builds(http, BODIES),
    st.builds(http, BODIES, HEADERS.filter(bool)),
    st.builds(http, BODIES, status=st.sampled_from([200, 204, 301, 307, 400, 401, 429, 500, 999])),
    st.builds(http, BODIES, length=st.sampled_from([-1, 0, 5, 10**6, 10**30])),
    st.binary(max_size=30).map(lambda raw: Sent((raw,))),
)


@pytest.mark.parametrize("count", [20, pytest.param(500, marks=pytest.mark.slow)])
def test_random_servers(count):
    @settings(
        max_examples=count, deadline=None, suppress_health_check=list(HealthCheck), database=None
    )
    @given(st.lists(REPLIES, min_size=1, max_size=6))
    def run(replies: list[Sent]) -> None:
        started = time.monotonic()
        with TemporaryDirectory() as folder:
            path = Path(folder) / "j.jsonl"
            scores, reasons = judged(replies, path)
            rows = [json.loads(line) for line in path.read_text().splitlines()] if scores else []
            again, _ = judged([http(b"", status=400)], path)
            assert again == scores
        assert scores.keys() | reasons.keys() == {(1, 1), (2, 1)}
        assert not scores.keys() & reasons.keys()
        assert [(row["question_id"], row["turn"]) for row in rows] == list(scores)
        assert all(1 <= score <= 10 for score in scores.values())
        assert all(len(reason.splitlines()) == 1 for reason in reasons.values())
        assert time.monotonic() - started < 10

    run()


@pytest.mark.parametrize(
    "body",
    [
        *(b"", b"null", b"{}", b"[1]", b"{", b"[" * 10**5, b'{"choices": []}', b'{"choices": 5}'),
        *(b'{"choices": {"0": 5}}', b'{"choices": [{"message": []}]}'),
        completion([{"type": "text", "text": "[[9]]"}]),
    ],
    ids=repr,
)
def test_what_is_no_completion_is_no_rating(body, tmp_path):
    scores, reasons = judged([http(body)], tmp_path / "j.jsonl")
    assert scores == {}
    assert set(reasons.values()) == {"no rating in 3 judgements"}


def test_an_endless_answer_is_given_up(monkeypatch, tmp_path):
    head = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n\r\n"
    fast = Sent((head, *([b" " * 2**16] * 64)))
    assert set(judged([fast], tmp_path / "a.jsonl")[1].values()) == {
        "an answer of over 1048576 bytes"
    }


@pytest.mark.parametrize("start", [b"", b"HTTP/1.1 200 OK\r\nX: ", b"HTTP/1.1 200 OK\r\n\r\n"])
def test_a_server_that_drips_is_given_up_in_the_time_that_the_help_names(
    start, monkeypatch, tmp_path, capsys
):
    monkeypatch.undo()
    with pytest.raises(SystemExit):
        main(["judge", "--help"])
    assert f"after {chat.TIMEOUT_SECONDS:g} seconds" in " ".join(capsys.readouterr().out.split())
    monkeypatch.setattr(chat, "TIMEOUT_SECONDS", 0.3)
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    started = time.monotonic()
    _, reasons = judged([Sent((start, *([b" "] * 100)), pause=0.1)], tmp_path / "j.jsonl")
    assert set(reasons.values()) == {"no answer in 0.3 s, retries included"}
    assert time.monotonic() - started < 5


def test_two_judges_of_one_run_exclude_each_other(tmp_path):
    path, entered, leave = tmp_path / "j.jsonl", threading.Event(), threading.Event()

    def rate(prompt: str, _: int) -> Reply:
        entered.set()
        assert leave.wait(10)
        return Reply("[[5]]")

    with JudgeServer(rate) as server:
        first = threading.Thread(target=judge, args=(path, server.url))
        first.start()
        assert entered.wait(10)
        with pytest.raises(DataError, match=r"j.jsonl: another process is writing it; wait until"):
            judge(path, server.url)
        leave.set()
        first.join()
        assert judge(path, server.url).rows.keys() == {(1, 1), (2, 1)}
        assert server.asked == {"Q1|A": 1, "Q2|A": 1}


ROW = {
    "question_id": 1,
    "turn": 1,
    "model": "m",
    "judge": ["j", "single-v1"],
    "user_prompt": "Q1|A",
}
NO_JUDGEMENTS = [
    *(b"[" * 10**5, b"9" * 10**5, b"\xff\xfe", b"{}", b"[]", b"3", b"NaN"),
    json.dumps(ROW).encode(),
    b'{"question_id": [1], "turn": {}, "model": "m", "judge": 5, "user_prompt": "q"}',
]
OFF_THE_SCALE = [
    json.dumps(ROW | {"score": score}).encode() for score in (11, 0, -2, 10**400, 1e999)
]


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        *((line, "skipped, not a judgement") for line in NO_JUDGEMENTS),
        *((line, "skipped, has no rating or verdict") for line in OFF_THE_SCALE),
    ],
    ids=lambda text: repr(text[:70]),
)
def test_a_line_that_is_no_rating_is_noted_and_asked_again(line, reason, tmp_path):
    path = tmp_path / "j.jsonl"
    path.write_bytes(line + b"\n\n")
    with JudgeServer(lambda prompt, _: Reply("[[5]]")) as server:
        result = judge(path, server.url)
        again = judge(path, server.url)
    assert {key: row["score"] for key, row in result.rows.items()} == {(1, 1): 5, (2, 1): 5}
    [note] = result.notes
    assert note.startswith(f"{path}:1: ")
    assert reason in note
    assert again.notes == [note]
    assert sum(server.asked.values()) == 2


def test_a_servers_text_is_harmless_to_a_terminal(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("COPYSPEC_DATA_DIR", str(write_judge_data(tmp_path / "data")))
    question = {"question_id": 1, "category": "writing", "turns": ["Q", "R"]}
    write_conversations(tmp_path / "run", "mt_bench", [question])
    refusal = http(b"\x1b[2J\x1b]0;x\x07no", status=400)
    with HostileServer([refusal] * 9) as server:
        command = ["judge", str(tmp_path / "run"), "--model", "j", "--base-url", server.url]
        assert main(command) == 1
    printed = capsys.readouterr().out
    assert "HTTP 400: \\u001b[2J" in printed
    assert printed.replace("\n", "").isprintable()
