"""The report's page in a real browser: charts, filters, sources, dark, narrow, hostile texts."""

import base64
import gzip
import json
import random
import shutil
import string
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from time import perf_counter
from typing import Any

import pytest
from recorded_runs import HOSTILE, manifest, turn, write_run

from copyspec_eval.records import SpanCharacters
from copyspec_eval.reports.leaderboard import leaderboard
from copyspec_eval.reports.page.build import write_report
from copyspec_eval.reports.recorded import read_recorded
from copyspec_eval.types import CopyOrigin, Difference

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


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two runs: turns that were copied, one that differs, and texts that mean harm."""
    folder = tmp_path_factory.mktemp("page")
    rows = [turn("a", doc, number) for doc in range(30) for number in (1, 2)]
    end = len(HOSTILE + LONG)
    evil = replace(
        turn("a", 90, 1),
        task="evil",
        category=f"{HOSTILE[:20]} $x$",
        prompt=HOSTILE,
        answer=HOSTILE + LONG + "again",
        span_characters=(
            SpanCharacters(0, len(HOSTILE), 0, len(HOSTILE)),
            SpanCharacters(end - len("word "), end - 1, CopyOrigin.EARLIER, CopyOrigin.EARLIER),
            SpanCharacters(end, end + len("again"), CopyOrigin.STORE, CopyOrigin.STORE),
        ),
    )
    differing = turn("a", 91, 1)
    assert differing.baseline is not None
    diverged = replace(differing.baseline, difference=Difference(2, 5, 6, 1.0, 0.1))
    rows += [evil, replace(differing, baseline=diverged, text="I did not.")]
    one = write_run(folder / "a", rows, manifest("a"))
    two = write_run(folder / "b", [turn("b", 0, 1, drafter="suffix")], manifest("b"))
    write_report(leaderboard([read_recorded(one), read_recorded(two)]), folder / "out")
    return folder / "out" / "report.html"


def open_page(opened: Any, report: Path) -> None:
    """Until the answers are there, which are unpacked after the rest."""
    opened.goto(report.as_uri())
    opened.wait_for_selector("#count:not(:empty)", state="attached")


@pytest.fixture
def page(browser: Any, report: Path) -> Iterator[Any]:
    context = browser.new_context(viewport={"width": 1200, "height": 900})
    opened = context.new_page()
    problems: list[str] = []
    asked: list[str] = []
    opened.on("console", lambda message: problems.append(message.text))
    opened.on("pageerror", lambda error: problems.append(str(error)))
    opened.on("request", lambda request: asked.append(request.url))
    open_page(opened, report)
    yield opened
    context.close()
    assert problems == []
    assert asked == [report.as_uri()], "nothing from elsewhere"


def test_charts_and_cards_are_drawn(page):
    assert page.locator(".card").count() >= 6
    figures = page.locator("figure svg")
    assert figures.count() >= 6
    for index in range(figures.count()):
        box = figures.nth(index).bounding_box()
        assert box["width"] > 200
        assert box["height"] > 100
    texts = page.locator("figcaption").all_inner_texts()
    for part in ("tokens per second", "as the context grows", "Accepted lengths", "Latency"):
        assert any(part in text for text in texts), part


def shown(page: Any) -> int:
    return int(page.locator("#count").inner_text().split()[0])


def test_filters(page):
    assert shown(page) == 63
    page.select_option("select[name=drafter]", "suffix")
    assert shown(page) == 1
    page.select_option("select[name=drafter]", "")
    page.select_option("select[name=task]", "evil")
    assert shown(page) == 1
    page.select_option("select[name=task]", "")
    page.select_option("select[name=turn]", "2")
    assert shown(page) == 30
    page.select_option("select[name=turn]", "")
    page.select_option("select[name=category]", "math")
    assert shown(page) == 31
    page.select_option("select[name=category]", "")
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
    mark = first.locator("mark")
    assert mark.inner_text() == "It is so."
    mark.hover()
    source = first.locator(".source")
    assert source.inner_text() == "It is so."
    assert first.locator(".text").first.inner_text().startswith("Say it again")
    page.mouse.move(0, 0)
    assert first.locator(".source").count() == 0


def test_texts_are_texts(page):
    page.select_option("select[name=task]", "evil")
    entry = page.locator("#list details").first
    entry.locator("summary").click()
    prompt, answer = entry.locator(".text").nth(0), entry.locator(".text").nth(1)
    assert prompt.evaluate("box => box.textContent") == HOSTILE
    assert answer.evaluate("box => box.textContent") == HOSTILE + LONG + "again"
    entry.locator("mark").first.hover()
    sources = entry.locator(".source").evaluate_all("all => all.map(one => one.textContent)")
    assert "".join(sources) == HOSTILE
    stored = [
        (mark.inner_text(), mark.get_attribute("title"))
        for mark in entry.locator("mark.stored").all()
    ]
    assert stored == [
        ("word", "from an answer of an earlier run"),
        ("again", "from an earlier answer of the run"),
    ]
    assert page.evaluate("window.hacked") is None
    assert page.locator("main img").count() == 0


def test_real_runs_make_a_page(browser, tmp_path):
    runs = [read_recorded(folder) for folder in sorted(RESULTS.glob("copyspec-tiny-*"))]
    write_report(leaderboard(runs), tmp_path)
    problems: list[str] = []
    opened = browser.new_page()
    opened.on("console", lambda message: problems.append(message.text))
    open_page(opened, tmp_path / "report.html")
    assert shown(opened) == sum(len(run.records) for run in runs)
    assert opened.locator("figure svg").count() == 3 * 8
    opened.select_option("select[name=task]", "quickstart_redundant")
    opened.select_option("select[name=turn]", "2")
    first = opened.locator("#list details").first
    first.locator("summary").click()
    mark = first.locator("mark").first
    mark.hover()
    assert first.locator(".source").inner_text() == mark.inner_text()
    opened.close()
    assert problems == []


def test_dark_and_narrow(browser, report, tmp_path):
    colours = {}
    for scheme in ("light", "dark"):
        context = browser.new_context(
            viewport={"width": 375, "height": 800}, color_scheme=scheme, device_scale_factor=1
        )
        opened = context.new_page()
        open_page(opened, report)
        assert opened.evaluate("document.documentElement.scrollWidth") <= 375
        opened.locator("#list summary").first.click()
        assert opened.evaluate("document.documentElement.scrollWidth") <= 375
        colours[scheme] = opened.evaluate("getComputedStyle(document.body).backgroundColor")
        if scheme == "light":
            opened.locator("#theme").click()
            assert opened.evaluate("document.documentElement.dataset.theme") == "dark"
            colours["chosen"] = opened.evaluate("getComputedStyle(document.body).backgroundColor")
        opened.screenshot(path=str(tmp_path / f"{scheme}.png"), full_page=True)
        context.close()
    assert colours["dark"] == colours["chosen"] != colours["light"]


@pytest.mark.slow
def test_a_thousand_turns_are_small_and_open_soon(browser, tmp_path):
    source = random.Random(0)
    words = ["".join(source.choices(string.ascii_lowercase, k=6)) + " " for _ in range(5000)]

    def text(length: int) -> str:
        return "".join(source.choices(words, k=length // 7))

    places = tuple(SpanCharacters(p, p + 49, p, p + 49) for p in range(49, 2000, 98))
    rows = [
        turn("a", doc, 1, prompt=text(8000), answer=text(2009), span_characters=places)
        for doc in range(1000)
    ]
    folder = write_run(tmp_path / "run", rows, manifest("a"))
    write_report(leaderboard([read_recorded(folder)]), tmp_path)
    size = (tmp_path / "report.html").stat().st_size
    assert size < 10_000_000
    opened = browser.new_page()
    started = perf_counter()
    open_page(opened, tmp_path / "report.html")
    assert int(opened.locator("#count").inner_text().split()[0]) == 1000
    seconds = perf_counter() - started
    print(f"{size / 1e6:.1f} MB, open in {seconds:.2f} s")
    assert seconds < 2
    opened.close()


def test_no_text_is_in_the_page_as_it_is(report):
    page = report.read_text(encoding="utf-8")
    inside = page.partition('<script type="application/gzip" id="data">')[2]
    turns = json.loads(gzip.decompress(base64.b64decode(inside.partition("</script>")[0])))
    assert any(one["task"] == "evil" and one["prompt"] == HOSTILE for one in turns)
    assert "window.hacked" not in page


@pytest.mark.slow
def test_a_line_of_a_million_characters_opens_soon(browser, tmp_path):
    line = "x" * 10**6
    places = (SpanCharacters(10, 999_999, 10, 999_999),)
    row = turn("a", 1, 1, prompt=line, answer=line, text=line, span_characters=places)
    folder = write_run(tmp_path / "run", [row], manifest("a"))
    write_report(leaderboard([read_recorded(folder)]), tmp_path)
    opened = browser.new_page()
    started = perf_counter()
    open_page(opened, tmp_path / "report.html")
    opened.locator("#list summary").first.click()
    opened.locator("mark").first.hover()
    assert "950000 characters more, in turns.jsonl" in opened.locator("#list").inner_text()
    assert perf_counter() - started < 2
    opened.close()
