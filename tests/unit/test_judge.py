"""A judge gets FastChat's prompts, and what it does not rate is never a score."""

import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from judge_server import JudgeServer, Reply, write_judge_data

from copyspec_eval.errors import DataError, OptionError
from copyspec_eval.reports import judged
from copyspec_eval.scoring import chat
from copyspec_eval.scoring import mt_bench as judging
from copyspec_eval.scoring.chat import UnansweredError
from copyspec_eval.scoring.mt_bench import (
    Conversation,
    Grading,
    Guide,
    Judge,
    Judged,
    gradings,
    guide,
    judge_all,
    parse_rating,
    read_scores,
)
from copyspec_eval.sources import read_jsonl

MATH = Conversation(2, "math", ("1+1?", "Why?"), ("{2}", "So."))
WRITING = replace(MATH, question_id=3, category="writing")
GRADING = Grading(1, "math", 1, "single-v1", "Be fair.", "Q|A")
KEY = "sk-secret-0123456789"


@pytest.fixture
def data(tmp_path: Path) -> Guide:
    folder = write_judge_data(tmp_path / "data") / "mt_bench"
    files = (folder / "judge_prompts.jsonl", folder / "reference_answer_gpt-4.jsonl")
    prompts, references = ([row.fields for row in read_jsonl(file)] for file in files)
    return guide(prompts, references)


@pytest.fixture
def key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", KEY)


@pytest.fixture(autouse=True)
def hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(judging, "WAIT_SECONDS", 0.001)
    monkeypatch.setattr(chat, "MAX_RETRIES", 2)
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")


def asked(task: str, conversation: Conversation, data: Guide) -> list[tuple[int, str, str]]:
    return [(each.turn, each.template, each.user) for each in gradings(task, conversation, data)]


def test_references_are_shown_where_they_answer_the_question(data):
    plain = (2, "single-v1-multi-turn", "1+1?|{2}|Why?|So.")
    first = (1, "single-math-v1", "1+1?|{2}|ref R1")
    both = (2, "single-math-v1-multi-turn", "1+1?|{2}|Why?|So.|ref R1, R2")
    assert asked("mt_bench", MATH, data) == [first, both]
    assert asked("mt_redundant", MATH, data) == [first, plain], "the second question is another"
    without = [(1, "single-v1", "1+1?|{2}"), plain]
    assert asked("mt_bench", replace(WRITING, question_id=2), data) == without
    assert asked("mt_bench", replace(MATH, question_id=4), data) == without
    assert next(gradings("mt_bench", MATH, data)).system == "Be single-math-v1."


@pytest.mark.parametrize(
    ("judgement", "rating"),
    [
        ("Good. Rating: [[8]]", 8),
        ("[1] says so. [[7.5]] or [[3]]", 7.5),
        ("Rating: [6]", 6),
        *((text, None) for text in ("[[ten]] [[rating]] 8/10", "", "[[11]]", "[[0]]")),
        *((text, None) for text in (f"[[{'9' * 400}]]", "[0.5] and [[7")),
    ],
)
def test_ratings_are_parsed_as_by_fastchat(judgement, rating):
    assert parse_rating(judgement) == rating


def test_broken_judge_data_is_one_line(data):
    with pytest.raises(DataError, match=r"not FastChat's judge data \(KeyError\('prompt_template"):
        guide([{"name": "single-v1", "system_prompt": ""}], [])
    with pytest.raises(DataError, match="has no prompt 'single-v1'; copy the file again"):
        guide([], [])
    broken = {**data.templates, "single-v1": ("", "{other}")}
    with pytest.raises(
        DataError, match=r"the judge's prompt 'single-v1' has an unknown field \('other'\)"
    ):
        list(gradings("mt_bench", WRITING, data._replace(templates=broken)))


def rating_of(replies: Sequence[Reply]) -> tuple[Any, JudgeServer]:
    """The rating by a judge whose server gives `replies`, the last one repeatedly; or the error."""
    with JudgeServer(lambda _, n: replies[min(n, len(replies)) - 1]) as server:
        try:
            return Judge("gpt-4", server.url).rate(GRADING)[1], server
        except UnansweredError as error:
            return str(error), server


@pytest.mark.parametrize("trouble", [Reply("busy", 429), Reply("no", 500), Reply("no [[rating]]")])
def test_trouble_that_ends_is_asked_through(trouble, key):
    rating, server = rating_of([trouble, trouble, Reply("[[9]]")])
    assert (rating, server.asked) == (9, {"Q|A": 3})
    assert server.authorization == f"Bearer {KEY}"
    assert server.requests[0] == {
        "model": "gpt-4",
        "messages": [{"role": "system", "content": "Be fair."}, {"role": "user", "content": "Q|A"}],
        "temperature": 0,
        "max_tokens": 2048,
    }


@pytest.mark.parametrize(
    ("trouble", "reason", "times"),
    [
        (Reply("busy", 429), "HTTP 429: busy", 3),
        (Reply("not\nhere", 503), "HTTP 503: not here", 3),
        (Reply("I cannot say."), "no rating in 3 judgements", 3),
        (Reply(f"bad key {KEY}", 401), "HTTP 401: bad key not-recorded", 1),
        (Reply("x" * 190 + KEY, 400), "HTTP 400: " + "x" * 190, 1),
    ],
)
def test_trouble_that_stays_is_no_rating(trouble, reason, times, key):
    rating, server = rating_of([trouble])
    assert (rating, server.asked["Q|A"]) == (reason, times)


def test_a_judge_that_cannot_be_asked(monkeypatch):
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    with pytest.raises(OptionError, match="OPENAI_API_KEY is not set; set it, or give --base-url"):
        Judge("gpt-4")
    for url in ("localhost:8000", "http://", "http://[", "http://h:port"):
        with pytest.raises(OptionError, match="give one such as http://localhost:8000/v1"):
            Judge("gpt-4", url)
    monkeypatch.setenv("OPENAI_API_KEY", f"{KEY}é")
    with pytest.raises(OptionError) as caught:
        Judge("gpt-4")
    assert KEY not in str(caught.value)
    monkeypatch.setitem(sys.modules, "openai", None)
    with pytest.raises(OptionError, match=r"pip install 'copyspec-eval\[judge\]'$"):
        Judge("gpt-4")


def rated(path: Path, asked: Sequence[Grading], concurrency: int = 2) -> tuple[Judged, list[int]]:
    """`judge_all` by a judge that cannot rate id 13, and the ids that it was asked about."""
    observed: list[int] = []

    def rate(grading: Grading) -> tuple[str, float]:
        observed.append(grading.question_id)
        if grading.question_id == 13:
            raise UnansweredError("unlucky")
        return "fine\u2028", grading.question_id + grading.turn / 10

    return judge_all(rate, asked, path, "m", "j", concurrency), observed


def some(*ids: int) -> list[Grading]:
    return [replace(GRADING, question_id=number) for number in ids]


def test_what_is_judged_is_kept_and_the_rest_asked_again(tmp_path):
    path = tmp_path / "deep" / "j_single.jsonl"
    first, _ = rated(path, some(1, 13, 2))
    assert first.scores == {(1, 1): 1.1, (2, 1): 2.1}
    assert first.reasons == {(13, 1): "unlucky"}
    assert len(path.read_text("utf-8").splitlines()) == 2, "what is unjudged is not written"
    again, observed = rated(path, some(1, 13, 2))
    assert again == first
    assert observed == [13]


def test_a_line_cut_off_by_a_kill_is_asked_again(tmp_path):
    path = tmp_path / "j_single.jsonl"
    rated(path, some(1, 2), concurrency=1)
    path.write_bytes(path.read_bytes()[:-5])
    result, observed = rated(path, some(1, 2))
    assert (observed, result.scores) == ([2], {(1, 1): 1.1, (2, 1): 2.1})
    [note] = result.notes
    assert note.startswith(f"{path}:2: skipped, not a judgement (JSONDecodeError: ")
    assert note.endswith("; remove the line")
    first, _, third = path.read_text().splitlines()
    assert [json.loads(line)["question_id"] for line in (first, third)] == [1, 2]


def test_a_file_of_another_run_is_refused(tmp_path):
    path = tmp_path / "j_single.jsonl"
    rated(path, some(1))
    assert read_scores(path, some(1), "m", "j") == ({(1, 1): 1.1}, [])
    others = [
        (some(2), "m", "j"),
        ([replace(GRADING, user="Q|other")], "m", "j"),
        (some(1), "n", "j"),
        (some(1), "m", "k"),
    ]
    for other in others:
        with pytest.raises(DataError, match=r"single\.jsonl:1: judges another answer than this"):
            read_scores(path, *other)
    row = json.loads(path.read_text())
    path.write_text(json.dumps(row | {"score": -1}) + "\n")
    assert read_scores(path, some(1), "m", "j") == ({}, []), "FastChat's mark for unjudged"


def test_options_and_files_that_cannot_be_used(tmp_path):
    with pytest.raises(OptionError, match="concurrency 0; give 1 or more"):
        rated(tmp_path / "file", some(1), concurrency=0)
    (tmp_path / "file").touch()
    with pytest.raises(DataError, match=r"cannot be written .*; free space there, or choose"):
        rated(tmp_path / "file" / "j_single.jsonl", some(1))


def cells(text: str) -> Iterator[list[str]]:
    for line in text.splitlines():
        if line.startswith("|"):
            yield [cell.strip() for cell in line.strip("|").split("|")]


def test_the_table_leaves_the_unjudged_out_of_its_means():
    answers = [
        replace(GRADING, question_id=number, category=category, turn=turn)
        for number, category in ((1, "math"), (2, "writing"))
        for turn in (1, 2)
    ]
    scores = {(1, 1): 4.0, (1, 2): 1.0, (2, 1): 9.0}
    text = judged.ratings_table({"mt_bench": Judged(answers, scores, {(2, 2): "HTTP 500: no"}, [])})
    _, _, *rows = cells(text)
    assert [row[1:] for row in rows] == [
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
        "\nUnjudged, and in no mean: 1; start again to ask for them\n"
        "- HTTP 500: no: mt_bench 2 turn 2\n"
    )


def test_many_unjudged_answers_are_counted():
    answers = some(*range(30))
    text = judged.ratings_table({"t": Judged(answers, {}, {(n, 1): "no" for n in range(30)}, [])})
    assert "in no mean: 30;" in text
    assert text.endswith("t 9 turn 1, … and 20 more\n")
    text = judged.ratings_table(
        {"t": Judged(answers, {}, {(n, 1): f"no {n}" for n in range(30)}, [])}
    )
    assert text.endswith("\n- no 19: t 19 turn 1\n- … and 10 more reasons\n")
