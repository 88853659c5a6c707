"""The report page of made-up runs, opened in a browser."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from recorded_runs import board

from copyspec_eval.reports.page.build import write_report


def report_of(folder: Path, *runs: Path) -> Path:
    write_report(board(*runs), folder)
    return folder / "report.html"


@contextmanager
def opened(
    browser: Any, report: Path, width: int = 1200, height: int = 900, link: str = "", **options: Any
) -> Iterator[Any]:
    """The page, once its answers are unpacked; it has no problem and asks for nothing else."""
    context = browser.new_context(viewport={"width": width, "height": height}, **options)
    page = context.new_page()
    problems: list[str] = []
    asked: list[str] = []
    page.on("console", lambda message: problems.append(message.text))
    page.on("pageerror", lambda error: problems.append(str(error)))
    page.on("request", lambda request: asked.append(request.url))
    page.goto(report.as_uri() + link)
    page.wait_for_selector("#count:not(:empty)", state="attached")
    yield page
    context.close()
    assert problems == []
    assert {url.partition("#")[0] for url in asked} == {report.as_uri()}, "nothing from elsewhere"


def shown(page: Any) -> tuple[int, int]:
    """How many documents and turns the list has."""
    documents, _, turns, _ = page.locator("#count").inner_text().split()
    return int(documents), int(turns)
