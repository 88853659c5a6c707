"""A judge is asked as FastChat asks; whatever it sends, no rating is lost or made up."""

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from judge_server import PROMPTS, HostileServer, JudgeServer, Reply, Sent, http

from copyspec_eval import openai_api
from copyspec_eval.cli import main
from copyspec_eval.errors import DataError, OptionError
from copyspec_eval.reports import judged
from copyspec_eval.scoring.chat import ChatModel
from copyspec_eval.scoring.judging import Conversation, Judged, Match, judge_all, matches

MATH = Conversation(2, "math", ("1+1?", "Why?"), ("{2}", "So."))
WRITING = replace(MATH, category="writing")
REFERENCE = {"choices": [{"turns": ["R1", "R2"]}]}
KEY = "sk-secret-0123456789"


@pytest.fixture(autouse=True)
def surroundings(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("fastchat.llm_judge.common")
    monkeypatch.setattr(openai_api, "MAX_RETRIES", 0)
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.setenv("OPENAI_API_KEY", KEY)


def first_turns(*ids: int) -> list[Match]:
    return [Match((replace(WRITING, question_id=n, answers=("A", "")),), 1, None) for n in ids]


def judge(
    path: Path,
    url: str = "http://localhost:1",
    asked: Sequence[Match] = first_turns(1, 2),
    prompts: Sequence[dict[str, Any]] = PROMPTS,
    concurrency: int = 1,
) -> Judged:
    return judge_all(ChatModel("j", url), asked, prompts, path, ["m"], concurrency)


def judge_by(replies: list[Sent], path: Path) -> tuple[dict[Any, float], dict[Any, str]]:
    """Ratings, and reasons for none, of two answers."""
    with HostileServer(replies) as server:
        result = judge(path, server.url)
    return {key: row["score"] for key, row in result.rows.items()}, result.reasons


@pytest.mark.parametrize(
    ("task", "conversation", "all_references", "shown"),
    [
        ("mt_bench", MATH, False, [True, True]),
        ("mt_redundant", MATH, False, [True, False]),  # the second question is another
        ("mt_redundant", MATH, True, [True, True]),
        ("of_mine", MATH, True, [False, False]),
        ("mt_bench", WRITING, False, [False, False]),
        ("mt_bench", replace(MATH, question_id=4), False, [False, False]),
    ],
)
def test_references_are_shown_where_they_answer_the_question(
    task, conversation, all_references, shown
):
    asked = matches(task, [[conversation]], {2: REFERENCE}, all_references)
    assert [(each.turn, each.reference is not None) for each in asked] == [*enumerate(shown, 1)]


@pytest.mark.parametrize("trouble", [Reply("busy", 429), Reply("no", 500), Reply("no [[rating]]")])
def test_trouble_that_ends_is_asked_through(trouble, monkeypatch, tmp_path):
    monkeypatch.setattr(openai_api, "MAX_RETRIES", 2)
    with JudgeServer(lambda _, times: trouble if times < 3 else Reply("[[9]]")) as server:
        result = judge(tmp_path / "j.jsonl", server.url, [Match((MATH,), 2, REFERENCE)])
    assert [row["score"] for row in result.rows.values()] == [9]
    user = "1+1?|{2}|Why?|So.|ref R1, R2"
    assert server.asked == {user: 3}
    assert server.authorization == f"Bearer {KEY}"
    messages = [
        {"role": "system", "content": "Be single-math-v1-multi-turn."},
        {"role": "user", "content": user},
    ]
    sent = {"model": "j", "messages": messages, "temperature": 0, "max_tokens": 2048}
    assert server.requests[0] == sent


def completion(content: Any) -> bytes:
    return json.dumps({"choices": [{"message": {"content": content}}]}).encode()


NO_JSON = [b"", b"{", b"[" * 10**5, b"\xff"]
NO_COMPLETIONS = [
    *(b"null", b"{}", b"[1]", b'{"choices": []}', b'{"choices": 5}'),
    *(b'{"choices": {"0": 5}}', b'{"choices": [{"message": []}]}'),
]
NO_RATINGS = [
    *("[[ten]] [[rating]] 8/10", "", "[[11]]", "[[0]]", "[[08]]", "[0.5] and [[7"),
    *(f"[[{'9' * 400}]]", f"[[{'9' * 5000}]]", [{"type": "text", "text": "[[9]]"}]),
]


@pytest.mark.parametrize(
    ("body", "rating"),
    [
        (completion("Good. Rating: [[8]]"), 8),
        (completion("[1] says so. [[7.5]] or [[3]]"), 7.5),
        (completion("Rating: [6]"), 6),
        *((body, None) for body in (*NO_JSON, *NO_COMPLETIONS, *map(completion, NO_RATINGS))),
    ],
    ids=lambda value: str(value)[:70],
)
def test_only_a_number_on_the_scale_is_a_rating(body, rating, tmp_path):
    scores, reasons = judge_by([http(body)], tmp_path / "j.jsonl")
    if rating:
        assert scores == {(1, 1): rating, (2, 1): rating}
    else:
        [reason] = {*reasons.values()}
        assert not scores
        assert "is not JSON" in reason if body in NO_JSON else reason == "no rating in 3 judgements"


def test_broken_judge_data_is_one_line(tmp_path):
    cases: list[tuple[list[dict[str, Any]], str]] = [
        (PROMPTS[1:], "judge_prompts.jsonl has no 'single-v1'; copy the file again"),
        ([{"name": "single-v1"}], "judge_prompts.jsonl has no 'single-math-v1'"),
        ([PROMPTS[0] | {"prompt_template": "{other}"}, *PROMPTS[1:]], r"data \(KeyError\('other'"),
        ([{"name": each["name"]} for each in PROMPTS], r"data \(KeyError\('type'"),
    ]
    for broken, message in cases:
        with pytest.raises(DataError, match=message):
            judge(tmp_path / "j.jsonl", prompts=broken)
    assert not (tmp_path / "j.jsonl").exists()


def test_a_judge_that_cannot_be_asked(monkeypatch, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(DataError, match=r"cannot be written .*; free space there, or choose"):
        judge(tmp_path / "file" / "j")
    with pytest.raises(OptionError, match="--concurrency must be at least 1, got 0"):
        judge(tmp_path / "j.jsonl", concurrency=0)
    for url in ("localhost:8000", "http://", "http://[", "http://h:port"):
        with pytest.raises(OptionError, match=r"pass e\.g\. http://127\.0\.0\.1:8000/v1"):
            ChatModel("gpt-4", url)
    monkeypatch.setenv("OPENAI_API_KEY", f"{KEY}é")
    with pytest.raises(OptionError, match=r"^\w+ has invalid characters; set it again$"):
        ChatModel("gpt-4")
    monkeypatch.delenv("OPENAI_API_KEY")
    with pytest.raises(OptionError, match="OPENAI_API_KEY is not set; set it, or give --base-url"):
        ChatModel("gpt-4")


KEYS = st.sampled_from(["choices", "message", "content", "a"])
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=9),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner),
    max_leaves=6,
)
RATINGS = ["[[5]]", "[[10]]", "[[1.5]]", "[[11]]", "[[0]]", f"[[{'9' * 400}]]", "[[-3]]", "[[nan]]"]
BODIES = (
    st.binary(max_size=60)
    | VALUES.map(lambda value: json.dumps(value).encode())
    | (st.sampled_from(RATINGS) | st.text(max_size=9) | VALUES).map(completion)
)
HEADERS = [
    *("Content-Encoding: gzip", "Content-Encoding: br", "Transfer-Encoding: chunked"),
    *("Retry-After: nan", "Content-Type: text/html; charset=none", "Location: http://["),
]
STATUSES = [200, 204, 301, 307, 400, 401, 429, 500, 999]
REPLIES = st.one_of(
    st.builds(http, BODIES),
    st.builds(http, BODIES, st.sampled_from(HEADERS)),
    st.builds(http, BODIES, status=st.sampled_from(STATUSES)),
    st.builds(http, BODIES, length=st.sampled_from([-1, 0, 5, 10**6, 10**30])),
    st.binary(max_size=30).map(lambda raw: Sent((raw,))),
)


@pytest.mark.parametrize("count", [10, pytest.param(500, marks=pytest.mark.slow)])
def test_random_servers(count, monkeypatch):
    monkeypatch.setattr(openai_api, "TIMEOUT_SECONDS", 0.3)

    @settings(
        max_examples=count, deadline=None, suppress_health_check=list(HealthCheck), database=None
    )
    @given(st.lists(REPLIES, min_size=1, max_size=6))
    def run(replies: list[Sent]) -> None:
        with TemporaryDirectory() as folder:
            path = Path(folder) / "j.jsonl"
            scores, reasons = judge_by(replies, path)
            rows = [json.loads(line) for line in path.read_text().splitlines()] if scores else []
            again, _ = judge_by([http(b"", status=400)], path)
            assert again == scores
        assert scores.keys() | reasons.keys() == {(1, 1), (2, 1)}
        assert not scores.keys() & reasons.keys()
        assert [(row["question_id"], row["turn"]) for row in rows] == list(scores)
        assert all(1 <= score <= 10 for score in scores.values())
        assert all(len(reason.splitlines()) == 1 for reason in reasons.values())

    run()


def test_an_endless_answer_is_given_up(tmp_path):
    head = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n\r\n"
    fast = Sent((head, *([b" " * 2**20] * 64)))
    _, reasons = judge_by([fast], tmp_path / "j.jsonl")
    assert {*reasons.values()} == {"an answer of over 33554432 bytes"}


@pytest.mark.parametrize("start", [b"HTTP", b"HTTP/1.1 200 OK\r\nX: ", b"HTTP/1.1 200 OK\r\n\r\n"])
def test_a_server_that_drips_is_given_up(start, monkeypatch, tmp_path):
    monkeypatch.setattr(openai_api, "TIMEOUT_SECONDS", 0.2)
    drips = Sent((start, *([b" "] * 100)), pause=0.05)
    _, reasons = judge_by([drips], tmp_path / "j.jsonl")
    assert {*reasons.values()} == {"no answer in 0.2 s, retries included"}


def test_a_netrc_does_not_replace_the_key(monkeypatch, tmp_path):
    netrc = tmp_path / "netrc"
    netrc.write_text("machine 127.0.0.1 login me password pw\n")
    netrc.chmod(0o600)
    monkeypatch.setenv("NETRC", str(netrc))
    with JudgeServer(lambda prompt, times: Reply("[[9]]")) as server:
        judge(tmp_path / "j.jsonl", server.url)
    assert server.authorization == f"Bearer {KEY}"


def test_the_help_names_the_time_after_which_an_answer_is_given_up(capsys):
    with pytest.raises(SystemExit):
        main(["judge", "--help"])
    assert f"after {openai_api.TIMEOUT_SECONDS:g} seconds" in " ".join(
        capsys.readouterr().out.split()
    )


def test_two_judges_of_one_run_exclude_each_other(tmp_path):
    path = tmp_path / "j.jsonl"

    def rate(prompt: str, _: int) -> Reply:
        with pytest.raises(DataError, match=r"j.jsonl: another process is writing it; wait until"):
            judge(path)
        return Reply("[[5]]")

    with JudgeServer(rate) as server:
        assert judge(path, server.url).rows.keys() == {(1, 1), (2, 1)}


ROW = {"question_id": 1, "turn": 1, "model": "m", "judge": ["j", "single-v1"]}
ROW |= {"user_prompt": "1+1?|A"}
NO_JUDGEMENTS = [
    *(b"[" * 10**5, b"9" * 10**5, b"\xff\xfe", b"{}", b"[]", b"3", b"NaN"),
    *(json.dumps(ROW).encode(), json.dumps(ROW | {"score": 5}).encode()[:-5]),
    b'{"question_id": [1], "turn": {}, "model": "m", "judge": 5, "user_prompt": "q"}',
]
OFF_THE_SCALE = [
    json.dumps(ROW | {"score": score}).encode() for score in (11, 0, -1, 10**400, 1e999)
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
    """Also a last line without an end, as a kill leaves it."""
    path = tmp_path / "j.jsonl"
    path.write_bytes(b"\n" + line)
    with JudgeServer(lambda prompt, _: Reply("[[5]]")) as server:
        result, again = judge(path, server.url), judge(path, server.url)
    assert {key: row["score"] for key, row in result.rows.items()} == {(1, 1): 5, (2, 1): 5}
    assert again.rows == result.rows
    [note] = result.notes
    assert note.startswith(f"{path}:2: {reason}")
    assert note.endswith("; remove the line")
    assert again.notes == [note]
    assert server.asked.total() == 2


@pytest.mark.parametrize(
    "change",
    [
        *({"question_id": 9}, {"turn": 2}, {"model": "n"}),
        *({"user_prompt": "1+1?|B"}, {"user_prompt": "2+2?|A"}),
        *({"judge": ["k", "single-v1"]}, {"judge": ["j", "single-math-v1"]}),
    ],
    ids=str,
)
def test_a_file_of_another_run_is_refused(change, tmp_path):
    path = tmp_path / "j.jsonl"
    path.write_text(json.dumps(ROW | {"score": 5} | change) + "\n")
    with pytest.raises(DataError, match=r"j\.jsonl:1: judges another answer than this run's; move"):
        judge(path)


def test_the_table_leaves_the_unjudged_out_of_its_means():
    conversations = [MATH, replace(WRITING, question_id=3)]
    rows = {(2, 1): {"score": 4}, (2, 2): {"score": 1}, (3, 1): {"score": 9}}
    result = Judged(matches("t", [conversations], {}), rows, {(3, 2): "HTTP 500: no"}, ["a note"])
    text = judged.ratings_table({"mt_bench": result})
    lines = [line.replace("|", " ").split() for line in text.splitlines() if line[:1] == "|"]
    assert [" ".join(line[1:]) for line in lines[2:]] == [
        *("both all 4 1 4.67", "both math 2 0 2.50", "both writing 2 1 9.00"),
        *("1 all 2 0 6.50", "1 math 1 0 4.00", "1 writing 1 0 9.00"),
        *("2 all 2 1 1.00", "2 math 1 0 1.00", "2 writing 1 1"),
    ]
    assert text.endswith(
        "\nNot judged, and in no mean: 1; repeat the command to ask for them\n"
        "- HTTP 500: no: mt_bench 3 turn 2\nnote: a note\n"
    )


@pytest.mark.parametrize(
    ("reason", "end"),
    [
        ("no", "t 9 turn 1, … and 20 more\n"),
        ("no {}", "\n- no 19: t 19 turn 1\n- … and 10 more reasons\n"),
    ],
)
def test_many_unjudged_answers_are_counted(reason, end):
    reasons = {(number, 1): reason.format(number) for number in range(30)}
    text = judged.ratings_table({"t": Judged(first_turns(*range(30)), {}, reasons, [])})
    assert "in no mean: 30;" in text
    assert text.endswith(end)
