"""The report's page in a real browser: charts, filters, sources, dark, narrow, hostile texts."""

import base64
import gzip
import json
import os
import random
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from string import ascii_lowercase
from typing import Any

import pytest
from recorded_runs import HOSTILE, board, recorded_run, turn

from copyspec_eval.records import SpanCharacters
from copyspec_eval.reports.page.build import write_report
from copyspec_eval.types import Attempt, CopyOrigin, Difference

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
LONG = "word " * 4000
RESULTS = Path(__file__).resolve().parents[2] / "results"


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    if CHROMIUM is None:
        pytest.skip("NOT TESTED without chromium: apt-get install chromium")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield started
        started.close()


def report_of(folder: Path, *runs: Path) -> Path:
    write_report(board(*runs), folder)
    return folder / "report.html"


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two runs: turns that were copied, one that differs, and texts that mean harm."""
    folder = tmp_path_factory.mktemp("page")
    rows = [turn("a", doc, number) for doc in range(30) for number in (1, 2)]
    end = len(HOSTILE + LONG)
    places = (
        SpanCharacters(0, len(HOSTILE), 0, len(HOSTILE)),
        SpanCharacters(end - len("word "), end - 1, CopyOrigin.EARLIER, CopyOrigin.EARLIER),
        SpanCharacters(end, end + len("again"), CopyOrigin.STORE, CopyOrigin.STORE),
    )
    evil: dict[str, Any] = {"task": "evil", "category": f"{HOSTILE[:20]} $x$", "prompt": HOSTILE}
    evil["answer"] = HOSTILE + LONG + "again"
    differing = turn("a", 91, 1, text="I did not.")
    assert differing.baseline is not None
    diverged = replace(differing.baseline, difference=Difference(2, 5, 6, 1.0, 0.1))
    rows += [
        turn("a", 90, 1, span_characters=places, **evil),
        replace(differing, baseline=diverged),
    ]
    one = recorded_run(folder / "a", "a", rows)
    two = recorded_run(folder / "b", "b", [turn("b", 0, 1, drafter="suffix")])
    return report_of(folder / "out", one, two)


@contextmanager
def opened(browser: Any, report: Path, width: int = 1200, **options: Any) -> Iterator[Any]:
    """The page, once its answers are unpacked; it has no problem and asks for nothing else."""
    context = browser.new_context(viewport={"width": width, "height": 900}, **options)
    page = context.new_page()
    problems: list[str] = []
    asked: list[str] = []
    page.on("console", lambda message: problems.append(message.text))
    page.on("pageerror", lambda error: problems.append(str(error)))
    page.on("request", lambda request: asked.append(request.url))
    page.goto(report.as_uri())
    page.wait_for_selector("#count:not(:empty)", state="attached")
    yield page
    context.close()
    assert problems == []
    assert asked == [report.as_uri()], "nothing from elsewhere"


@pytest.fixture
def page(browser: Any, report: Path) -> Iterator[Any]:
    with opened(browser, report) as page:
        yield page


def shown(page: Any) -> int:
    return int(page.locator("#count").inner_text().split()[0])


def test_filters(page):
    assert shown(page) == 63
    for name, value, count in (
        ("drafter", "suffix", 1),
        ("task", "evil", 1),
        ("turn", "2", 30),
        ("category", "math", 31),
    ):
        page.select_option(f"select[name={name}]", value)
        assert shown(page) == count
        page.select_option(f"select[name={name}]", "")
    page.select_option("select[name=order]", "diverged")
    assert shown(page) == 1
    assert "diverged" in page.locator("#list summary").inner_text()
    page.select_option("select[name=order]", "slowest")
    facts = page.locator("#list summary .facts").all_inner_texts()
    seconds = [float(text.split(" s,")[0].split()[-1]) for text in facts if " s," in text]
    assert len(seconds) == 50
    assert seconds == sorted(seconds, reverse=True)


def test_pointing_at_a_copy_shows_its_source(page):
    page.select_option("select[name=task]", "mt_bench")
    first = page.locator("#list details").first
    first.locator("summary").click()
    mark, source = first.locator("mark"), first.locator(".source")
    mark.hover()
    assert mark.inner_text() == source.inner_text() == "It is so."
    assert first.locator(".text").first.inner_text().startswith("Say it again")
    page.mouse.move(0, 0)
    assert source.count() == 0


def test_texts_are_texts(page):
    page.select_option("select[name=task]", "evil")
    entry = page.locator("#list details").first
    entry.locator("summary").click()
    entry.locator(".text").first.wait_for()  # they are filled in after the click
    texts = entry.locator(".text").evaluate_all("all => all.map(one => one.textContent)")
    assert texts[:2] == [HOSTILE, HOSTILE + LONG + "again"]
    entry.locator("mark").first.hover()
    entry.locator(".source").first.wait_for()
    sources = entry.locator(".source").evaluate_all("all => all.map(one => one.textContent)")
    assert "".join(sources) == HOSTILE
    stored = entry.locator("mark.stored").all()
    assert [(mark.inner_text(), mark.get_attribute("title")) for mark in stored] == [
        ("word", "from an answer of an earlier run"),
        ("again", "from an earlier answer of the run"),
    ]
    assert page.evaluate("window.hacked") is None
    assert page.locator("main img").count() == 0


def test_no_text_is_in_the_page_as_it_is(report):
    page = report.read_text(encoding="utf-8")
    inside = page.partition('<script type="application/gzip" id="data">')[2]
    turns = json.loads(gzip.decompress(base64.b64decode(inside.partition("</script>")[0])))
    assert any(one["task"] == "evil" and one["prompt"] == HOSTILE for one in turns)
    assert "window.hacked" not in page


def test_real_runs_make_a_page(browser, tmp_path):
    runs = sorted(RESULTS.glob("copyspec-tiny-*"))
    with opened(browser, report_of(tmp_path, *runs)) as page:
        assert shown(page) == sum(len((run / "turns.jsonl").open().readlines()) for run in runs)
        assert page.locator(".card").count() >= 6
        boxes = [figure.bounding_box() for figure in page.locator("figure svg").all()]
        assert len(boxes) == 3 * 8
        assert all(box["width"] > 200 and box["height"] > 100 for box in boxes)
        captions = " ".join(page.locator("figcaption").all_inner_texts())
        for part in ("tokens per second", "as the context grows", "Accepted lengths", "Latency"):
            assert part in captions
        page.select_option("select[name=task]", "quickstart_redundant")
        page.select_option("select[name=turn]", "2")
        first = page.locator("#list details").first
        first.locator("summary").click()
        mark = first.locator("mark").first
        mark.hover()
        assert first.locator(".source").inner_text() == mark.inner_text()


def test_dark_and_narrow(browser, report):
    width = "document.documentElement.scrollWidth"
    colour = "getComputedStyle(document.body).backgroundColor"
    with opened(browser, report, 375, color_scheme="dark") as page:
        dark = page.evaluate(colour)
    with opened(browser, report, 375, color_scheme="light") as page:
        assert page.evaluate(width) <= 375
        page.locator("#list summary").first.click()
        assert page.evaluate(width) <= 375
        light = page.evaluate(colour)
        page.locator("#theme").click()
        assert page.evaluate("document.documentElement.dataset.theme") == "dark"
        assert page.evaluate(colour) == dark != light


@pytest.mark.slow
@pytest.mark.parametrize(("count", "length"), [(1000, 4000), (1, 10**6)])
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
        assert shown(page) == count
        if count == 1:
            page.locator("#list summary").first.click()
            page.locator("mark").first.hover()
            listed = page.locator("#list").inner_text()
            assert "950000 characters more, in turns.jsonl" in listed
        assert page.evaluate("performance.now()") < 2000


@pytest.mark.slow
def test_fifty_runs_of_five_hundred_turns_take_neither_long_nor_much_memory(tmp_path):
    """As long as answers of MT-Bench: 2,000 characters each, and a draft every few tokens."""
    piece = "a piece of the answer, "
    made: dict[str, Any] = {
        "prompt": "What is asked in a prompt of some length? " * 60,
        **{"answer": piece * 44, "text": piece * 88, "token_ids": tuple(range(500))},
        "attempts": tuple(Attempt(10, accepted % 11) for accepted in range(100)),
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
