"""Puts the page together: template, style, script, charts, and the turns as data."""

import base64
import gzip
import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from importlib import resources
from pathlib import Path
from typing import Any

import jinja2
from pandas import DataFrame, Series

from copyspec_eval import journal
from copyspec_eval.records import TurnRecord, segments
from copyspec_eval.redaction import shareable
from copyspec_eval.reports import leaderboard_forms as forms
from copyspec_eval.reports.leaderboard import Leaderboard, conditions, leaderboard
from copyspec_eval.reports.page import charts
from copyspec_eval.reports.page.charts import Chart
from copyspec_eval.reports.recorded import read_runs
from copyspec_eval.reports.summary import METRICS
from copyspec_eval.reports.tables import metric_column, metric_columns
from copyspec_eval.types import COPIED, first_difference

MOST_TURNS = 1000  # turns with their texts; of more, those that differ from the baseline come first
MOST_ARMS = 12  # arms with cards and charts
MOST_DIFFERENCES = 100  # answers that differ from the baseline, in the table of where they do
_SNIPPET = 60

_CARDS = [
    *metric_columns(".2f", "speedup_ended", "speedup"),
    metric_column("tokens_per_second", ".4g", "tokens/s"),
    metric_column("baseline_tokens_per_second", ".4g", "baseline tokens/s"),
    *metric_columns(".0%", "copied_share", "earlier_share"),
    metric_column("tokens_per_forward", ".2f", "tokens per forward"),
    metric_column("identical", ".1%", "identical to the baseline"),
]


def write_report(board: Leaderboard, folder: Path) -> list[Path]:
    """Make all files, then write them into `folder`; notes name files without other folders."""
    board = replace(board, notes=[shareable(note) for note in board.notes])
    texts = {"LEADERBOARD.md": forms.as_markdown(board), "leaderboard.json": forms.as_json(board)}
    texts |= forms.csv_files(board) | {"report.html": build(board)}
    for name, text in texts.items():
        journal.replace(folder / name, text)
    return [folder / name for name in texts]


def write_page(folder: Path) -> Path:
    """Write the page of the runs in a folder there."""
    board = leaderboard(read_runs([folder]))
    path = folder / "report.html"
    journal.replace(path, build(replace(board, notes=[shareable(note) for note in board.notes])))
    return path


def build(board: Leaderboard) -> str:
    """The page of a leaderboard and the answers that it was made of."""
    notes = list(board.notes)
    # Lines of one model and drafter under the same conditions; tasks may differ.
    conditioned = board.lines.assign(condition=conditions(board)[2])
    arms = conditioned.groupby(["model", "drafter", "condition"], sort=False).groups
    if len(arms) > MOST_ARMS:
        notes.append(f"cards and charts are of the first {MOST_ARMS} of {len(arms)} arms")
    drafters = board.lines["drafter"].reindex(board.turns["line"]).to_list()
    labelled = list(zip(board.turns.index, drafters, strict=True))
    shown = _chosen(board)
    differences = _differences(board)
    compared = board.turns[board.turns["agreement"] != ""]
    counts = compared.groupby("line")[["identical", "near_tie", "diverged"]].sum()
    agreements = [
        [*board.lines.loc[line, ["task", "drafter"]], *(f"{count:.0f}" for count in row)]
        for line, row in counts.iterrows()
    ]
    environment = jinja2.Environment(autoescape=True, undefined=jinja2.StrictUndefined)
    return environment.from_string(_file("page.html")).render(
        style=_file("style.css"),
        script=_file("viewer.js"),
        arms=[_arm(board, *arm) for arm in list(arms.items())[:MOST_ARMS]],
        lines=forms.line_cells(board) if len(board.lines) else None,
        conditions=forms.in_words(board),
        notes=notes,
        agreements=agreements,
        differences=differences[:MOST_DIFFERENCES],
        num_hidden_differences=max(0, len(differences) - MOST_DIFFERENCES),
        shown=f"{len(shown):,} of {len(drafters):,} turns" if len(shown) < len(drafters) else "",
        data=_embedded([_turn(board.records[n], drafter) for n, drafter in labelled if n in shown]),
    )


def _file(name: str) -> str:
    return (resources.files(__package__) / name).read_text(encoding="utf-8")


def _arm(board: Leaderboard, names: Sequence[object], lines: Iterable[Any]) -> dict[str, Any]:
    turns = board.turns[board.turns["line"].isin(lines)]
    figures = Series({each.name: each.figure(turns) for each in METRICS if not each.is_bound})
    cards = [(column.heading, str(column.cell(figures))) for column in _CARDS]
    shown = [("turns", f"{len(turns):,}"), *((name, value) for name, value in cards if value)]
    drawn = list(_charts(board, lines, turns))
    return {"title": f"{names[0]}, {names[1]}", "cards": shown, "charts": drawn}


def _charts(board: Leaderboard, lines: Iterable[Any], turns: DataFrame) -> Iterator[Chart]:
    for line in lines:
        task, drafter = board.lines.loc[line, ["task", "drafter"]]
        by_turn = board.by_turn.loc[line]
        yield charts.speeds(task, "by turn", drafter, by_turn.rename(index="turn {}".format))
        for turn, by_category in board.by_category.loc[line].groupby("turn"):
            if len(by_category) > 1:
                what = f"turn {turn}, by category"
                yield charts.speeds(task, what, drafter, by_category.droplevel("turn"))
    accepted = charts.accepted_lengths([board.records[row] for row in turns.index])
    yield from filter(None, (charts.speed_by_context(turns), accepted, charts.latencies(turns)))


def _differences(board: Leaderboard) -> list[list[str]]:
    rows = []
    for number, turn in board.turns[board.turns["difference_position"].notna()].iterrows():
        record = board.records[number]
        start = max(0, (first_difference(record.answer, record.text) or 0) - _SNIPPET // 2)
        names = board.lines.loc[turn["line"], ["task", "drafter"]]
        place = str(record.doc_id), str(record.turn), turn["agreement"].replace("_", "-")
        excerpts = (text[start : start + _SNIPPET] for text in (record.answer, record.text))
        rows.append([*names, *place, f"{turn['difference_position']:.0f}", *excerpts])
    return rows


def _chosen(board: Leaderboard) -> set[Any]:
    """Index of all turns, or of the differing ones and as many of the others, evenly spread."""
    turns = board.turns
    if len(turns) <= MOST_TURNS:
        return set(turns.index)
    differs = turns["difference_position"].notna()
    differing, others = turns.index[differs][:MOST_TURNS], turns.index[~differs]
    count = MOST_TURNS - len(differing)
    return {*differing, *(others[place * len(others) // count] for place in range(count))}


def _turn(record: TurnRecord, drafter: str) -> dict[str, Any]:
    """A turn for the viewer; what is empty is left out."""
    counts, baseline = record.counts, record.baseline
    drafts = (counts.drafts or {}).items()
    copied = sum(drafted.num_accepted for source, drafted in drafts if source in COPIED)
    fields = {
        "task": record.task,
        "doc": record.doc_id,
        "turn": record.turn,
        "category": record.category,
        "drafter": drafter,
        "run": record.run_id,
        "seconds": round(counts.seconds or 0.0, 4),
        "tokens": counts.num_tokens,
        "forwards": counts.num_forwards,
        "copied": None if counts.drafts is None else copied,
        "baseline_seconds": round(baseline.counts.seconds or 0.0, 4) if baseline else None,
        "agreement": baseline.agreement if baseline else None,
        "prompt": record.prompt,
        "pieces": segments(record.answer or record.text, record.span_characters),
        "baseline": record.text if baseline and baseline.difference else None,
    }
    return {name: value for name, value in fields.items() if value not in (None, "")}


def _embedded(data: object) -> str:
    """Base64 of compressed JSON: a third of the size, and no text can end the element it is in."""
    # A lone surrogate has no UTF-8.
    text = json.dumps(data, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "replace")
    return base64.b64encode(gzip.compress(text, mtime=0)).decode()
