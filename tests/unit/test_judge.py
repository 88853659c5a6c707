"""A judge reads FastChat's prompts, and what it does not rate is never a score."""

import json
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from judge_server import JudgeServer, Reply, write_judge_data

from copyspec_eval.errors import DataError, OptionError
from copyspec_eval.reports import judged
from copyspec_eval.scoring import chat, judging
from copyspec_eval.scoring.chat import ChatModel
from copyspec_eval.scoring.judging import Conversation, Judged, Match, judge_all, matches
from copyspec_eval.sources import read_jsonl

MATH = Conversation(2, "math", ("1+1?", "Why?"), ("{2}", "So."))
WRITING = replace(MATH, category="writing")
REFERENCE = {"choices": [{"turns": ["R1", "R2"]}]}
KEY = "sk-secret-0123456789"


@pytest.fixture
def prompts(tmp_path: Path) -> list[dict[str, Any]]:
    file = write_judge_data(tmp_path / "data") / "mt_bench" / "judge_prompts.jsonl"
    return [row.fields for row in read_jsonl(file)]


@pytest.fixture(autouse=True)
def surroundings(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("fastchat.llm_judge.common")
    monkeypatch.setattr(judging, "WAIT_SECONDS", 0.001)
    monkeypatch.setattr(chat, "MAX_RETRIES", 2)
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.setenv("OPENAI_API_KEY", KEY)


def first_turns(*ids: int) -> list[Match]:
    return [Match((replace(WRITING, question_id=n, answers=(f"A{n}", "")),), 1, None) for n in ids]


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


def ask(
    prompts: Sequence[dict[str, Any]], path: Path, asked: Sequence[Match], *replies: Reply
) -> tuple[Judged, JudgeServer]:
    """Judged by a server that gives `replies`, the last one repeatedly."""
    with JudgeServer(lambda _, n: replies[min(n, len(replies)) - 1]) as server:
        model = ChatModel("org/j", server.url)
        return judge_all(model, asked, prompts, path, ["m"], 1), server


@pytest.mark.parametrize(
    ("judgement", "rating"),
    [
        ("Good. Rating: [[8]]", 8),
        ("[1] says so. [[7.5]] or [[3]]", 7.5),
        ("Rating: [6]", 6),
        *((text, None) for text in ("[[ten]] [[rating]] 8/10", "", "[[11]]", "[[0]]", "[[08]]")),
        *((text, None) for text in (f"[[{'9' * 400}]]", f"[[{'9' * 5000}]]", "[0.5] and [[7")),
    ],
    ids=lambda value: str(value)[:20],
)
def test_only_a_number_on_the_scale_is_a_rating(judgement, rating, prompts, tmp_path):
    result, server = ask(prompts, tmp_path / "j.jsonl", first_turns(2), Reply(judgement))
    assert {row["score"] for row in result.rows.values()} == ({rating} if rating else set())
    assert [*result.reasons.values()] == ([] if rating else ["no rating in 3 judgements"])
    assert server.asked == {"1+1?|A2": 1 if rating else 3}


@pytest.mark.parametrize("trouble", [Reply("busy", 429), Reply("no", 500), Reply("no [[rating]]")])
def test_trouble_that_ends_is_asked_through(trouble, prompts, tmp_path):
    asked = [Match((MATH,), 2, REFERENCE)]
    path, replies = tmp_path / "j.jsonl", (trouble, trouble, Reply("[[9]]"))
    result, server = ask(prompts, path, asked, *replies)
    user = "1+1?|{2}|Why?|So.|ref R1, R2"
    assert server.asked == {user: 3}
    assert server.authorization == f"Bearer {KEY}"
    assert server.requests[0] == {
        "model": "org/j",
        "messages": [
            {"role": "system", "content": "Be single-math-v1-multi-turn."},
            {"role": "user", "content": user},
        ],
        "temperature": 0,
        "max_tokens": 2048,
    }
    [row] = result.rows.values()
    assert row | {"tstamp": 0} == {
        **{"question_id": 2, "turn": 2, "model": "m", "user_prompt": user, "judgment": "[[9]]"},
        **{"judge": ["org/j", "single-math-v1-multi-turn"], "score": 9, "tstamp": 0},
    }


@pytest.mark.parametrize(
    ("trouble", "reason", "times"),
    [
        (Reply("busy", 429), "HTTP 429: busy", 3),
        (Reply("not\nhere", 503), "HTTP 503: not here", 3),
        (Reply(f"bad key {KEY}", 401), "HTTP 401: bad key not-recorded", 1),
        (Reply("x" * 190 + KEY, 400), "HTTP 400: " + "x" * 190, 1),
    ],
)
def test_trouble_that_stays_is_no_rating(trouble, reason, times, prompts, tmp_path):
    result, server = ask(prompts, tmp_path / "j.jsonl", first_turns(2), trouble)
    assert (result.reasons, result.rows) == ({(2, 1): reason}, {})
    assert server.asked["1+1?|A2"] == times


def test_broken_judge_data_is_one_line(prompts, tmp_path):
    cases = [
        (prompts[1:], "judge_prompts.jsonl has no 'single-v1'; copy the file again"),
        ([{"name": "single-v1"}], "judge_prompts.jsonl has no 'single-math-v1'"),
        ([prompts[0] | {"prompt_template": "{other}"}, *prompts[1:]], r"data \(KeyError\('other'"),
        ([{"name": each["name"]} for each in prompts], r"data \(KeyError\('type'"),
    ]
    for broken, message in cases:
        with pytest.raises(DataError, match=message):
            ask(broken, tmp_path / "j.jsonl", first_turns(1), Reply("[[5]]"))
    assert not (tmp_path / "j.jsonl").exists()


def test_a_judge_that_cannot_be_asked(monkeypatch):
    monkeypatch.delenv("OPENAI_API_KEY")
    with pytest.raises(OptionError, match="OPENAI_API_KEY is not set; set it, or give --base-url"):
        ChatModel("gpt-4")
    for url in ("localhost:8000", "http://", "http://[", "http://h:port"):
        with pytest.raises(OptionError, match="give one such as http://localhost:8000/v1"):
            ChatModel("gpt-4", url)
    monkeypatch.setenv("OPENAI_API_KEY", f"{KEY}é")
    with pytest.raises(OptionError) as caught:
        ChatModel("gpt-4")
    assert KEY not in str(caught.value)
    monkeypatch.setitem(sys.modules, "openai", None)
    with pytest.raises(OptionError, match=r"pip install 'copyspec-eval\[judge\]'$"):
        ChatModel("gpt-4")


@pytest.fixture
def rated(prompts: list[dict[str, Any]]) -> Iterator[Callable[..., tuple[Judged, list[str]]]]:
    """Judged by a server that rates no answer 13, and what it was asked."""

    def reply(prompt: str, _: int) -> Reply:
        return Reply("no", 400) if "A13" in prompt else Reply(f"fine\u2028 [[{prompt[-1]}]]")

    with JudgeServer(reply) as server:

        def judge(path: Path, asked: Sequence[Match], model: str = "m") -> Any:
            server.requests.clear()
            result = judge_all(ChatModel("j", server.url), asked, prompts, path, [model], 1)
            return result, [body["messages"][-1]["content"] for body in server.requests]

        yield judge


def scores(result: Judged) -> dict[tuple[int, int], float]:
    return {key: row["score"] for key, row in result.rows.items()}


def test_what_is_judged_stays_and_the_rest_is_asked_again(rated, tmp_path):
    path = tmp_path / "deep" / "j_single.jsonl"
    first, _ = rated(path, first_turns(1, 13, 2))
    assert scores(first) == {(1, 1): 1, (2, 1): 2}
    assert first.reasons == {(13, 1): "HTTP 400: no"}
    assert len(path.read_text("utf-8").splitlines()) == 2, "what is unjudged is not written"
    again, asked = rated(path, first_turns(1, 13, 2))
    assert (again, asked) == (first, ["1+1?|A13"])


def test_a_line_cut_off_by_a_kill_is_asked_again(rated, tmp_path):
    path = tmp_path / "j_single.jsonl"
    rated(path, first_turns(1, 2))
    path.write_bytes(path.read_bytes()[:-5])
    result, asked = rated(path, first_turns(1, 2))
    assert (asked, scores(result)) == (["1+1?|A2"], {(1, 1): 1, (2, 1): 2})
    [note] = result.notes
    assert note.startswith(f"{path}:2: skipped, not a judgement (JSONDecodeError: ")
    assert note.endswith("; remove the line")
    lines = path.read_text().splitlines()
    assert [json.loads(line)["question_id"] for line in (lines[0], lines[2])] == [1, 2]


def test_a_file_of_another_run_is_refused(rated, tmp_path):
    path = tmp_path / "j_single.jsonl"
    rated(path, first_turns(1))
    [match] = first_turns(1)
    other_question = replace(match.conversations[0], questions=("2+2?", ""))
    for other in (first_turns(2), [match._replace(conversations=(other_question,))]):
        with pytest.raises(DataError, match=r"single\.jsonl:1: judges another answer than this"):
            rated(path, other)
    with pytest.raises(DataError, match=r"single\.jsonl:1: judges another answer than this"):
        rated(path, first_turns(1), model="n")
    row = json.loads(path.read_text())
    for change in ({"judge": ["k", "single-v1"]}, {"judge": ["j", "single-math-v1"]}):
        path.write_text(json.dumps(row | change) + "\n")
        with pytest.raises(DataError, match="judges another answer"):
            rated(path, first_turns(1))
    path.write_text(json.dumps(row | {"score": -1}) + "\n")
    result, asked = rated(path, first_turns(1))
    assert (len(asked), scores(result)) == (1, {(1, 1): 1}), "FastChat's mark for unjudged"


def test_options_and_files_that_cannot_be_used(prompts, tmp_path):
    with pytest.raises(OptionError, match="--concurrency must be at least 1, got 0"):
        judge_all(ChatModel("j"), first_turns(1), prompts, tmp_path / "file", ["m"], 0)
    (tmp_path / "file").write_text("")
    with pytest.raises(DataError, match=r"cannot be written .*; free space there, or choose"):
        judge_all(ChatModel("j"), first_turns(1), prompts, tmp_path / "file" / "j", ["m"], 1)


def cells(text: str) -> Iterator[list[str]]:
    for line in text.splitlines():
        if line.startswith("|"):
            yield [cell.strip() for cell in line.strip("|").split("|")]


def test_the_table_leaves_the_unjudged_out_of_its_means():
    conversations = [MATH, replace(WRITING, question_id=3)]
    rows = {(2, 1): {"score": 4}, (2, 2): {"score": 1}, (3, 1): {"score": 9}}
    result = Judged(matches("t", [conversations], {}), rows, {(3, 2): "HTTP 500: no"}, ["a note"])
    text = judged.ratings_table({"mt_bench": result})
    _, _, *table = cells(text)
    assert [row[1:] for row in table] == [
        ["both", "all", "4", "1", "4.67"],
        ["both", "math", "2", "0", "2.50"],
        ["both", "writing", "2", "1", "9.00"],
        ["1", "all", "2", "0", "6.50"],
        ["1", "math", "1", "0", "4.00"],
        ["1", "writing", "1", "0", "9.00"],
        ["2", "all", "2", "1", "1.00"],
        ["2", "math", "1", "0", "1.00"],
        ["2", "writing", "1", "1", ""],
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
