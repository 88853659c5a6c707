"""The page's answers in a real browser: list, permalinks, keyboard, sources, steps, differences."""

import base64
import gzip
import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from browsing import opened, report_of, shown
from recorded_runs import HOSTILE, recorded_run, turn

from copyspec_eval.records import SpanCharacters
from copyspec_eval.types import Attempt, CopyOrigin, Difference, Span

LONG = "word " * 4000


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two runs: copies, texts that mean harm, one answer that differs, one without texts."""
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
    differing = turn("a", 91, 1, text="I did not: It is so.")
    assert differing.baseline is not None
    diverged = replace(differing.baseline, difference=Difference(2, 5, 6, 1.0, 0.1))
    withheld: dict[str, Any] = dict.fromkeys(("prompt", "text", "answer"), "")
    rows += [
        turn("a", 90, 1, span_characters=places, **evil),
        replace(differing, baseline=diverged),
        turn("a", 92, 1, tokens_sha256="0" * 64, span_characters=(), task="others", **withheld),
        turn("a", 93, 1, span_characters=(), task="empty", **withheld | {"prompt": "Say nothing."}),
    ]
    two = [
        turn(
            "b", 0, 1, drafter="suffix + tree/?#", attempts=(Attempt(4, 0),), spans=(Span(0, 1, 0),)
        )
    ]
    runs = [recorded_run(folder / name, name, made) for name, made in (("a", rows), ("b", two))]
    return report_of(folder / "out", *runs)


@pytest.fixture
def page(browser: Any, report: Path) -> Iterator[Any]:
    with opened(browser, report) as page:
        yield page


def heading(page: Any) -> str:
    return str(page.locator("#viewer h3").inner_text())


def open_task(page: Any, task: str) -> Any:
    """The only turn of a task's first document."""
    page.select_option("select[name=task]", task)
    return page.locator("#viewer .turn").first


def names(page: Any) -> list[str]:
    return [text.split("\n")[0] for text in page.locator("#list a").all_inner_texts()]


def test_filters_search_and_sort(page):
    assert shown(page) == (35, 65)
    for name, value, count in (
        ("drafter", "suffix + tree/?#", (1, 1)),
        ("task", "evil", (1, 1)),
        ("category", "math", (17, 32)),
        ("which", "differing", (1, 1)),
    ):
        page.select_option(f"select[name={name}]", value)
        assert shown(page) == count
        page.select_option(f"select[name={name}]", "")
    page.fill("input[type=search]", "say it AGAIN 17")
    assert names(page) == ["mt_bench 17"]
    assert heading(page) == "mt_bench 17"
    page.fill("input[type=search]", "no such text")
    assert shown(page) == (0, 0)
    assert "No answer is like that" in page.locator("#viewer").inner_text()
    page.fill("input[type=search]", "")
    for order, sign in (("most_gain", -1), ("least_gain", 1)):
        page.select_option("select[name=order]", order)
        facts = page.locator("#list a .facts").all_inner_texts()
        gains = [float(text.split("×")[0].split()[-1]) for text in facts if "×" in text]
        assert len(gains) == 34, "an answer that differs has no speed-up"
        assert gains == sorted(gains, key=lambda gain: sign * gain)


def test_turns_of_a_document_are_together_and_neighbours_follow(page):
    page.select_option("select[name=task]", "mt_bench")
    assert heading(page) == "mt_bench 0"
    assert page.locator("#viewer h4").all_inner_texts() == ["Turn 1", "Turn 2"]
    previous, following = (page.get_by_role("button", name=name) for name in ("Previous", "Next"))
    assert previous.is_disabled()
    following.click()
    assert heading(page) == "mt_bench 1"
    page.keyboard.press("j")
    assert heading(page) == "mt_bench 2"
    page.keyboard.press("k")
    previous.click()
    assert heading(page) == "mt_bench 0"


@pytest.mark.parametrize("drafter", ["copyspec", "suffix + tree/?#"])
def test_a_link_opens_the_answer_again(browser, report, drafter):
    with opened(browser, report) as page:
        page.select_option("select[name=drafter]", drafter)
        page.locator("#list a").last.click()
        name, about = heading(page), page.locator("#viewer h3 + p").inner_text()
        href = page.locator("#viewer h4 a").last.get_attribute("href")
        assert page.evaluate("location.hash") == href
    with opened(browser, report, link=href) as page:
        assert (heading(page), page.locator("#viewer h3 + p").inner_text()) == (name, about)
        assert drafter in about
        box = page.locator("#viewer h4").last.bounding_box()
        assert 0 < box["y"] < 900, "the page is at the answer"
        page.locator("#equality a").click()
        page.wait_for_function("document.querySelector('#viewer h3').innerText === 'mt_bench 91'")
        name = heading(page)
        page.evaluate("location.hash = '#/nothing/of/the/sort/0/1'")
        assert heading(page) == name


def test_by_keyboard_alone(page):
    def focused(script: str) -> Any:
        return page.evaluate(f"(node => {script})(document.activeElement)")

    def tab_to(selector: str) -> None:
        for _ in range(60):
            page.keyboard.press("Tab")
            if focused(f"node.matches({selector!r})"):
                outline = focused("getComputedStyle(node).outline")
                assert "solid" in outline or "auto" in outline, "the focus is visible"
                return
        pytest.fail(f"the Tab key does not reach {selector}")

    tab_to("#theme")
    tab_to("input[type=search]")
    page.keyboard.type("say it again 1")
    assert shown(page) == (11, 22)
    tab_to("select[name=order]")
    tab_to("#list a")
    page.keyboard.press("ArrowDown")
    assert heading(page) == "mt_bench 10"
    page.keyboard.press("End")
    assert heading(page) == "mt_bench 19"
    page.keyboard.press("Home")
    tab_to("#viewer .bar button:enabled")
    page.keyboard.press("Enter")
    assert heading(page) == "mt_bench 10"
    page.keyboard.press("Enter")
    assert heading(page) == "mt_bench 11"
    tab_to("mark")
    assert page.locator(".source").inner_text() == "It is so."
    page.keyboard.press("Tab")
    assert page.locator(".source").count() == 0


def test_pointing_at_a_copy_shows_its_source(page):
    first = open_task(page, "mt_bench")
    mark, source = first.locator("mark"), first.locator(".source")
    mark.hover()
    assert mark.inner_text() == source.inner_text() == "It is so."
    assert first.locator(".text").first.inner_text().startswith("Say it again")
    page.mouse.move(0, 0)
    assert source.count() == 0


def test_texts_are_texts(page):
    entry = open_task(page, "evil")
    texts = entry.locator(".text").evaluate_all("all => all.map(one => one.textContent)")
    assert texts == [HOSTILE, HOSTILE + LONG + "again"]
    entry.locator("mark").first.focus()
    sources = entry.locator(".source").evaluate_all("all => all.map(one => one.textContent)")
    assert "".join(sources) == HOSTILE
    stored = entry.locator("mark.stored").all()
    assert [(mark.inner_text(), mark.get_attribute("title")) for mark in stored] == [
        ("word", "copied from an answer of an earlier run"),
        ("again", "copied from an earlier answer of the run"),
    ]
    assert page.evaluate("window.hacked") is None
    assert page.locator("main img").count() == 0


def test_no_text_is_in_the_page_as_it_is(report):
    page = report.read_text(encoding="utf-8")
    inside = page.partition('<script type="application/gzip" id="data">')[2]
    turns = json.loads(gzip.decompress(base64.b64decode(inside.partition("</script>")[0])))
    assert any(one["task"] == "evil" and one["prompt"] == HOSTILE for one in turns)
    assert "window.hacked" not in page


def test_the_baseline_is_shown_where_it_differs(page):
    identical = open_task(page, "mt_bench")
    assert "identical to the baseline" in identical.inner_text()
    assert identical.locator("ins, del, .difference").count() == 0
    assert identical.locator(".text").count() == 2
    page.select_option("select[name=task]", "")
    page.select_option("select[name=which]", "differing")
    differing = page.locator("#viewer .turn")
    assert "diverged" in differing.inner_text()
    assert "×" not in differing.locator(".facts").first.inner_text()
    box = differing.locator(".difference")
    assert box.inner_text() == "I dodid not: It is so."
    assert box.locator("ins").all_inner_texts() == ["do"]
    assert box.locator("del").all_inner_texts() == ["did not"]
    labels = differing.locator(".label").all_inner_texts()
    assert labels[:3] == ["Prompt", "Answer", "Baseline"]


def test_withheld_and_empty_texts_are_named(page):
    for task, boxes, text in (("others", 0, "text withheld"), ("empty", 1, "The answer is empty.")):
        entry = open_task(page, task)
        assert entry.locator(".text").count() == boxes
        assert entry.locator(".empty").inner_text() == text


def test_steps_are_drawn(page):
    entry = open_task(page, "mt_bench")
    image = entry.locator("svg.steps")
    label = "5 steps, 2 with a draft: 20 tokens drafted, 5 accepted, 15 rejected"
    assert image.get_attribute("aria-label") == label
    columns = "path => path.getAttribute('d').split('M').length - 1"
    drawn = {
        name: image.locator(f".{name}").evaluate(columns)
        for name in ("own", "accepted", "rejected")
    }
    assert drawn == {"own": 5, "accepted": 2, "rejected": 2}
    assert "order is not recorded" not in entry.inner_text()
    page.select_option("select[name=drafter]", "suffix + tree/?#")
    assert "order is not recorded" in page.locator("#viewer .turn").inner_text()
