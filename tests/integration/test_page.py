"""The report's page in a real browser: first screen, tables, charts, dark, narrow, accessible."""

import os
import random
import re
import subprocess
import sys
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from string import ascii_lowercase
from typing import Any

import pytest
from axe_playwright_python.sync_playwright import Axe  # type: ignore[import-untyped]
from browsing import opened, report_of, shown
from recorded_runs import recorded_run, turn, turns
from sample_rows import with_counts

from copyspec_eval.records import SpanCharacters, TurnRecord
from copyspec_eval.types import Attempt, Difference, Span

REAL_RUNS = sorted((Path(__file__).resolve().parents[2] / "results").glob("copyspec-tiny-*"))
SCREENS = ((1200, 900), (375, 812))
ON_SCREENS = pytest.mark.parametrize(("width", "height"), SCREENS)


def differing(row: TurnRecord) -> TurnRecord:
    assert row.baseline is not None
    other = replace(row.baseline, difference=Difference(2, 5, 6, 1.0, 0.1))
    return replace(row, text="I did not: It is so.", baseline=other)


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two arms under different conditions; an answer differs, another is withheld."""
    folder = tmp_path_factory.mktemp("page")
    first, *rows = turns("a")
    first = replace(first, prompt="Say it again. It is so.\n" * 40)
    texts: dict[str, Any] = dict.fromkeys(("prompt", "text", "answer"), "")
    rows += [differing(first), turn("a", 9, 1, tokens_sha256="0" * 64, span_characters=(), **texts)]
    one = recorded_run(folder / "a", "a", rows)
    two = recorded_run(folder / "b", "b", turns("b", drafter="suffix"), dtype="float32")
    return report_of(folder / "out", one, two)


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return report_of(tmp_path_factory.mktemp("real"), *REAL_RUNS)


NO_BASELINE = "8 answers at .* tokens/s; no baseline ran, so there is no speed-up"
INTERVAL = r"\(95 %: \d\.\d\d to \d\.\d\d\)"


@pytest.mark.parametrize(
    ("change", "speedup", "sentence"),
    [
        (None, r"(\d\.\d\d×)", rf"(\d\.\d\d×) faster {INTERVAL}, 8 of 8 answers identical"),
        (differing, r"(\d\.\d\d×)", rf"(\d\.\d\d×) faster {INTERVAL}, 7 of 8 answers identical"),
        (lambda row: replace(row, baseline=None), r".* tokens/s", NO_BASELINE),
    ],
    ids=["identical", "differing", "unpaired"],
)
def test_the_first_screen_has_the_result(browser, tmp_path, change, speedup, sentence):
    rows = turns("a")
    if change is differing:
        rows[0] = differing(rows[0])
    elif change:
        rows = [change(row) for row in rows]
    report = report_of(tmp_path, recorded_run(tmp_path / "run", "a", rows))
    for width, height in SCREENS:
        with opened(browser, report, width, height) as page:
            parts = ["h1", "time", ".speedup", ".sentence"]
            parts += [".differs"] if change is differing else []
            for part in parts:
                box = page.locator(part).bounding_box()
                assert box["y"] + box["height"] <= height, part
            assert page.locator("h1").inner_text() == "M"
            assert page.locator("time").inner_text() == "2026-01-02"
            large = re.fullmatch(speedup, page.locator(".speedup").inner_text())
            below = re.match(sentence, page.locator(".sentence").inner_text())
            assert large
            assert below
            assert large.groups() == below.groups(), "both are the same figure"
            warnings = page.locator(".differs").all_inner_texts()
            assert [text[:16] for text in warnings] == ["1 answer differs"] * len(parts[4:])


@ON_SCREENS
def test_the_leaderboard_shows_the_speedup_without_scrolling(browser, real, width, height):
    with opened(browser, real, width, height) as page:
        headings = page.locator("#leaderboard th").all_inner_texts()
        assert headings[:3] == ["task", "speed-up (ended)", "identical"]
        cells = page.locator("#leaderboard tr:first-child td").all()[:3]
        boxes = [cell.bounding_box() for cell in cells]
        assert all(box["x"] >= 0 and box["x"] + box["width"] <= width for box in boxes)
        texts = [cell.inner_text().split("\n") for cell in cells]
        assert texts == [
            ["quickstart_extractive", "copyspec"],
            ["1.55", "1.45 to 1.66"],
            ["100.0%"],
        ]


def test_conditions_are_tables(page_of_two):
    rows = page_of_two.locator("#conditions tr").all_inner_texts()
    settings = dict(row.split("\t", 1) for row in rows)
    shared = ("hardware.processor", "P"), ("batch_size", "1"), ("versions.torch", "2.13")
    for name, value in (*shared, ("dtype", "bfloat16\tfloat32"), ("evaluation.gen_kwargs", None)):
        assert settings.get(name) == value
    commands = page_of_two.locator("#conditions pre").all_inner_texts()
    assert [command.split()[:3] for command in commands] == [["lm_eval", "--model", "copyspec"]] * 2


@pytest.fixture
def page_of_two(browser, report):
    with opened(browser, report) as page:
        yield page


@pytest.mark.parametrize("scheme", ["light", "dark"])
@ON_SCREENS
def test_nothing_serious_is_inaccessible(browser, report, width, height, scheme):
    with opened(browser, report, width, height, color_scheme=scheme) as page:
        for which in ("", "differing"):
            page.select_option("select[name=which]", which)
            violations = Axe().run(page).response["violations"]
            serious = [each for each in violations if each["impact"] in ("serious", "critical")]
            assert [(each["id"], each["nodes"][0]["html"]) for each in serious] == []
        levels = page.evaluate(
            "[...document.querySelectorAll('h1,h2,h3,h4')].map(h => +h.tagName[1])"
        )
        assert levels[0] == levels.count(1) == 1
        assert all(after <= before + 1 for before, after in pairwise(levels)), levels


def test_speed_against_context_is_by_turn(browser, tmp_path):
    """Within each turn it falls by a tenth of the first speed per 100 tokens, across it rises."""
    rows = []
    for doc, number, speed in (
        (d, n, (100, 1000)[n - 1] * (1 - d / 10)) for d in range(4) for n in (1, 2)
    ):
        counts = {"num_prompt_tokens": 100 * doc + 1000 * number, "decode_seconds": 9 / speed}
        rows.append(with_counts(turn("a", doc, number), **counts))
    report = report_of(tmp_path, recorded_run(tmp_path / "run", "a", rows))
    with opened(browser, report) as page:
        caption = page.locator("figcaption", has_text="as the context grows").inner_text()
    assert "with drafts: turn 1 -11.8 ±0.0, turn 2 -11.8 ±0.0;" in caption
    assert "% of the mean speed per 100 tokens of context" in caption


def test_real_runs_make_a_page(browser, real):
    with opened(browser, real) as page:
        rows = sum(len((run / "turns.jsonl").open().readlines()) for run in REAL_RUNS)
        assert shown(page)[1] == rows
        boxes = [figure.bounding_box() for figure in page.locator("figure svg").all()]
        assert len(boxes) == 3 * 10
        assert all(box["width"] > 200 and box["height"] > 100 for box in boxes)
        captions = " ".join(page.locator("figcaption").all_inner_texts())
        for part in ("tokens per second", "as the context grows", "Accepted lengths", "Latency"):
            assert part in captions
        page.select_option("select[name=task]", "quickstart_redundant")
        second = page.locator("#viewer .turn").nth(1)
        mark = second.locator("mark").first
        mark.hover()
        assert second.locator(".source").inner_text() == mark.inner_text()


def test_dark_and_narrow(browser, report):
    width = "document.documentElement.scrollWidth"
    colour = "getComputedStyle(document.body).backgroundColor"
    with opened(browser, report, 375, color_scheme="dark") as page:
        dark = page.evaluate(colour)
    with opened(browser, report, 375, color_scheme="light") as page:
        assert page.evaluate(width) <= 375
        page.select_option("select[name=which]", "differing")
        assert page.evaluate(width) <= 375
        light = page.evaluate(colour)
        page.locator("#theme").click()
        assert page.evaluate("document.documentElement.dataset.theme") == "dark"
        assert page.evaluate(colour) == dark != light


@pytest.mark.parametrize(
    ("count", "length"), [(1000, 4000), pytest.param(1, 10**6, marks=pytest.mark.slow)]
)
def test_many_turns_and_long_lines_are_small_and_open_soon(browser, tmp_path, count, length):
    source, rows = random.Random(0), []
    places = (SpanCharacters(10, length - 1, 10, length - 1),)
    for doc in range(count):
        prompt, text = ("".join(source.choices(ascii_lowercase, k=length)) for _ in range(2))
        row = turn("a", doc, 1, prompt=prompt, answer=text, text=text, span_characters=places)
        rows.append(row)
    report = report_of(tmp_path, recorded_run(tmp_path / "run", "a", rows))
    assert report.stat().st_size < 10e6
    with opened(browser, report) as page:
        assert shown(page) == (count, count)
        if count == 1:
            page.locator("mark").first.hover()
            assert "950000 characters more, in turns.jsonl" in page.locator("#viewer").inner_text()
        else:
            page.keyboard.press("j")
            assert page.locator("#viewer h3").inner_text() == "mt_bench 1"
            assert page.locator(".turn").count() == 1, "the open one alone is built"
        # The slow case has the machine to itself.
        assert page.evaluate("performance.now()") < (2000 if count == 1 else 10_000)


@pytest.mark.parametrize("most", [10, 5])
def test_of_too_many_turns_whole_documents_are_in_the_page(browser, tmp_path, monkeypatch, most):
    monkeypatch.setattr("copyspec_eval.reports.page.build.MOST_TURNS", most)
    rows = turns("a", 20)
    rows[-1] = differing(rows[-1])
    with opened(browser, report_of(tmp_path, recorded_run(tmp_path / "run", "a", rows))) as page:
        assert shown(page) == (most // 2, most // 2 * 2)
        assert f"{most // 2 * 2} of 40 turns" in page.locator("#answers").inner_text()
        assert "diverged" in page.locator("#list").inner_text()


@pytest.mark.slow
def test_fifty_runs_of_five_hundred_turns_take_neither_long_nor_much_memory(tmp_path):
    """As long as answers of MT-Bench: 2,000 characters each, and a draft every few tokens."""
    piece = "a piece of the answer, "
    made: dict[str, Any] = {
        "prompt": "What is asked in a prompt of some length? " * 60,
        **{"answer": piece * 44, "text": piece * 88, "token_ids": tuple(range(500))},
        "attempts": tuple(Attempt(10, accepted % 11) for accepted in range(100)),
        "spans": tuple(Span(at, 10, at) for at in range(0, 500, 11)),
        "span_characters": tuple(
            SpanCharacters(at // 2, at // 2 + 23, at, at + 23) for at in range(0, 2000, 46)
        ),
    }
    folders = []
    for number in range(50):
        run, drafter = f"run{number:02}", ("copyspec", "suffix")[number % 2]
        rows = [
            turn(run, place // 2, place % 2 + 1, number, drafter=drafter, **made)
            for place in range(500)
        ]
        folders.append(recorded_run(tmp_path / run, run, rows, model=f"model{number // 2}"))

    program = Path(sys.executable).parent / "copyspec-eval"
    command: list[str | Path] = [program, "report", *folders, "--out", tmp_path / "out"]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    _, status, used = os.wait4(process.pid, 0)
    assert status == 0
    assert used.ru_utime + used.ru_stime < 30
    assert used.ru_maxrss * 1024 < 1e9
    assert (tmp_path / "out" / "report.html").stat().st_size < 10e6
