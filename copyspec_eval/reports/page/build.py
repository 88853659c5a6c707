"""Puts the page together: template, style, script, charts, and the turns as data."""

from __future__ import annotations

import base64
import gzip
import html
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from importlib import resources
from typing import Any

from copyspec_eval.records import TurnRecord
from copyspec_eval.reports.leaderboard import Conditions, Leaderboard, Line
from copyspec_eval.reports.leaderboard_forms import cells, in_words, number, numbered
from copyspec_eval.reports.page import charts
from copyspec_eval.reports.page.charts import Chart
from copyspec_eval.reports.summary import METRICS, evaluate
from copyspec_eval.types import Agreement

MOST_TURNS = 1000
"""Turns with their texts; of more, those that differ from plain decoding come first."""

MOST_ARMS = 12
"""Arms with cards and charts."""

MOST_DIFFERENCES = 100
"""Answers that differ from plain decoding, in the table of where they do."""

_SNIPPET = 60


def build(found: Leaderboard) -> str:
    """The page of a leaderboard and the answers that it was made of."""
    rows = [row for line in found.lines for row in line.rows]
    drafters = {id(row): line.drafter for line in found.lines for row in line.rows}
    shown, arms = _chosen(rows), _arms(found.lines)
    drawn = list(arms)[:MOST_ARMS]
    notes = list(found.notes)
    if len(arms) > len(drawn):
        notes.append(f"cards and charts are of the first {len(drawn)} of {len(arms)} arms")
    parts = {
        "STYLE": _file("style.css"),
        "SCRIPT": _file("viewer.js"),
        "CARDS": "".join(_cards(arm, arms[arm], alone=len(arms) == 1) for arm in drawn),
        "TABLE": _leaderboard(found),
        "NOTES": "".join(f"<li>{html.escape(note)}</li>" for note in notes),
        "CHARTS": "".join(_figures(arm, arms[arm], alone=len(arms) == 1) for arm in drawn),
        "DIFFERENCES": _differences(found.lines),
        "SHOWN": f"{len(shown):,} of {len(rows):,} turns" if len(shown) < len(rows) else "",
        "DATA": _embedded([_turn(row, drafters[id(row)]) for row in shown]),
    }
    page = _file("page.html")
    for name, part in parts.items():
        page = page.replace(f"<!--{name}-->", part, 1)
    return page


def _file(name: str) -> str:
    return (resources.files(__package__) / name).read_text(encoding="utf-8")


@dataclass(frozen=True, slots=True)
class _Arm:
    """What may be put into one figure: a model, a drafter, and conditions; tasks may differ."""

    model: str
    drafter: str
    conditions: Conditions

    @property
    def title(self) -> str:
        return f"{self.model}, {self.drafter}"


def _arms(lines: Sequence[Line]) -> dict[_Arm, list[Line]]:
    arms: dict[_Arm, list[Line]] = {}
    for line in lines:
        # What is asked of a request is the task's.
        conditions = replace(line.conditions, generation="")
        arms.setdefault(_Arm(line.model, line.drafter, conditions), []).append(line)
    return arms


def _rows(lines: Sequence[Line]) -> list[TurnRecord]:
    return [row for line in lines for row in line.rows]


def _cards(arm: _Arm, lines: Sequence[Line], alone: bool) -> str:
    rows = _rows(lines)
    figures = {metric.name: evaluate(metric, rows) for metric in METRICS}
    cards = [
        ("turns", f"{len(rows):,}"),
        ("speed-up", _known(figures["speedup"], ".2f")),
        ("tokens/s", _known(figures["tokens_per_second"], ".4g")),
        ("plain tokens/s", _known(figures["baseline_tokens_per_second"], ".4g")),
        ("copied", _known(figures["copied_share"], ".0%")),
        ("tokens per forward", _known(figures["tokens_per_forward"], ".2f")),
        ("identical to plain", _known(figures["identical"], ".1%")),
    ]
    shown = "".join(
        f'<div class="card"><b>{html.escape(value)}</b><span>{html.escape(name)}</span></div>'
        for name, value in cards
        if value
    )
    title = "" if alone else f"<h3>{html.escape(arm.title)}</h3>"
    return f'{title}<div class="cards">{shown}</div>'


def _known(value: float, form: str) -> str:
    return number(None if value != value else value, form)


def _leaderboard(found: Leaderboard) -> str:
    if not found.lines:
        return "<p>Nothing was answered.</p>"
    numbers = numbered(found.lines)
    told = "".join(f"<li>{html.escape(in_words(one))}</li>" for one in numbers)
    shown = "<details><summary>Conditions</summary>"
    return f'{_table(cells(found.lines, numbers))}{shown}<ol class="notes">{told}</ol></details>'


def _table(rows: Sequence[Sequence[str]]) -> str:
    head, *body = rows
    headers = "".join(f"<th>{html.escape(cell)}</th>" for cell in head)
    lines = "".join(
        "<tr>" + "".join(f"<td>{html.escape(cell)}</td>" for cell in row) + "</tr>" for row in body
    )
    table = f"<table><thead><tr>{headers}</tr></thead><tbody>{lines}</tbody></table>"
    return f'<div class="wide">{table}</div>'


def _charts(lines: Sequence[Line]) -> Iterator[Chart]:
    for line in lines:
        yield charts.speed_by_turn(line)
        for turn, figures in line.by_turn.items():
            if len(figures["by_category"]) > 1:
                yield charts.speed_by_category(line, turn)
    rows = _rows(lines)
    for chart in (
        charts.speed_by_context(rows),
        charts.accepted_lengths(rows),
        charts.latencies(rows),
    ):
        if chart is not None:
            yield chart


def _figures(arm: _Arm, lines: Sequence[Line], alone: bool) -> str:
    title = "" if alone else f"<h3>{html.escape(arm.title)}</h3>"
    return f'{title}<div class="charts">{"".join(map(_figure, _charts(lines)))}</div>'


def _figure(chart: Chart) -> str:
    title, note = html.escape(chart.title), html.escape(chart.note)
    return f"<figure><figcaption><b>{title}</b> {note}</figcaption>{chart.svg}</figure>"


def _differences(lines: Sequence[Line]) -> str:
    """How many answers are the baseline's, by task, and where the others part."""
    kinds: list[Agreement] = ["identical", "near_tie", "diverged"]
    counts, parted = [], []
    for line in lines:
        found = [row.baseline.agreement for row in line.rows if row.baseline]
        if found:
            counts.append([line.task, line.drafter, *(str(found.count(kind)) for kind in kinds)])
        parted += [
            _parted(row, line) for row in line.rows if row.baseline and row.baseline.difference
        ]
    if not counts:
        return "<p>No paired run: nothing was compared.</p>"
    table = _table([["task", "drafter", "identical", "near-tie", "diverged"], *counts])
    if not parted:
        return table + "<p>Every answer is token for token the plain one.</p>"
    heads = ["task", "drafter", "document", "turn", "agreement", "token", "with drafts", "plain"]
    left = len(parted) - MOST_DIFFERENCES
    rest = f"<p>And {left:,} more, in turns.jsonl.</p>" if left > 0 else ""
    return table + _table([heads, *parted[:MOST_DIFFERENCES]]) + rest


def _parted(row: TurnRecord, line: Line) -> list[str]:
    assert row.baseline is not None
    assert row.baseline.difference is not None
    drafted, plain = "".join(text for text, _, _ in row.segments), row.text
    first = next(
        (i for i, (a, b) in enumerate(zip(drafted, plain, strict=False)) if a != b),
        min(len(drafted), len(plain)),
    )
    start = max(0, first - _SNIPPET // 2)
    return [
        line.task,
        line.drafter,
        str(row.doc_id),
        str(row.turn),
        row.baseline.agreement.replace("_", "-"),
        str(row.baseline.difference.position),
        drafted[start : start + _SNIPPET],
        plain[start : start + _SNIPPET],
    ]


def _chosen(rows: Sequence[TurnRecord]) -> list[TurnRecord]:
    """All turns, or the differing ones and as many of the others, evenly spread."""
    if len(rows) <= MOST_TURNS:
        return list(rows)
    differing = [row for row in rows if row.baseline and row.baseline.difference][:MOST_TURNS]
    kept = {id(row) for row in differing}
    others = [row for row in rows if id(row) not in kept]
    count = MOST_TURNS - len(differing)
    return differing + [others[place * len(others) // count] for place in range(count)]


def _turn(row: TurnRecord, drafter: str) -> dict[str, Any]:
    """A turn for the viewer; what is empty is left out."""
    pieces = [list(piece) if piece[1] != -1 else [piece[0]] for piece in row.segments]
    told = {
        "task": row.task,
        "doc": row.doc_id,
        "turn": row.turn,
        "category": row.category,
        "drafter": drafter,
        "run": row.run_id,
        "seconds": round(row.seconds, 4),
        "tokens": row.num_tokens,
        "forwards": row.num_forwards,
        "copied": row.num_copied,
        "plain": round(row.baseline.seconds, 4) if row.baseline else None,
        "agreement": row.baseline.agreement if row.baseline else None,
        "prompt": row.prompt,
        "pieces": pieces or [[row.text]],
        "baseline": row.text if row.baseline and row.baseline.difference else None,
    }
    return {name: value for name, value in told.items() if value not in (None, "")}


def _embedded(data: object) -> str:
    """Base64 of compressed JSON: a third of the size, and no text can end the element it is in."""
    # A lone surrogate has no UTF-8.
    text = json.dumps(data, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "replace")
    return base64.b64encode(gzip.compress(text, mtime=0)).decode()
