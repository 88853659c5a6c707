"""Puts the page together: template, style, script, charts, and the turns as data."""

import base64
import gzip
import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from importlib import resources
from pathlib import Path
from typing import Any
from urllib.parse import quote

import jinja2
from pandas import DataFrame, Series

from copyspec_eval import journal
from copyspec_eval.records import TurnRecord, segments
from copyspec_eval.redaction import shareable
from copyspec_eval.reports import leaderboard_forms as forms
from copyspec_eval.reports.leaderboard import Leaderboard, conditions, leaderboard
from copyspec_eval.reports.page import charts
from copyspec_eval.reports.page.charts import Chart
from copyspec_eval.reports.page.steps import steps
from copyspec_eval.reports.recorded import read_runs
from copyspec_eval.reports.summary import METRICS
from copyspec_eval.reports.tables import Cells, Column, gain, metric_column, metric_columns, number
from copyspec_eval.reports.turns import counts_columns
from copyspec_eval.types import first_difference

MOST_TURNS = 1000  # turns with their texts; of more, those that differ from the baseline come first
MOST_ARMS = 12  # arms with cards and charts
MOST_DIFFERENCES = 100  # answers that differ from the baseline, in the table of where they do
_SNIPPET = 60

_SCRIPTS = ("texts.js", "steps.js", "viewer.js")
# Beside the task, on a phone too; scores are long, and come last.
_FIRST_COLUMNS = ("speed-up (ended)", "identical", "speed-up (all)")
# What the names of settings begin with that say where and with what a run was made.
_MACHINE = ("hardware.", "device", "dtype", "quantization", "batch_size", "threads", "versions.")

_CARDS = [
    Column("speed-up (all)", lambda row: f"{row['speedup']:.2f}×" if row["speedup"] > 0 else ""),
    metric_column("tokens_per_second", ".4g", "tokens/s"),
    metric_column("baseline_tokens_per_second", ".4g", "baseline tokens/s"),
    *metric_columns(".0%", "copied_share", "earlier_share"),
    metric_column("tokens_per_forward", ".2f", "tokens per forward"),
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
    drafters = board.turns["line"].map(board.lines["drafter"])
    shown = _chosen(board)
    answers = [_turn(board.records[n], name) for n, name in drafters.items() if n in shown]
    differences = _differences(board)
    compared = board.turns[board.turns["agreement"] != ""]
    counts = compared.groupby("line")[["identical", "near_tie", "diverged"]].sum()
    agreements = board.lines[["task", "drafter"]].join(counts.map("{:.0f}".format), how="inner")
    environment = jinja2.Environment(autoescape=True, undefined=jinja2.StrictUndefined)
    models = sorted(set(board.lines["model"]))
    return environment.from_string(_file("page.html")).render(
        style=_file("style.css"),
        script="".join(map(_file, _SCRIPTS)),
        models=", ".join(models[:3]) + (f" and {len(models) - 3} more" if models[3:] else ""),
        tasks=sorted(set(board.lines["task"])),
        dates=sorted(set(board.lines["date"])),
        arms=[_arm(board, *arm) for arm in list(arms.items())[:MOST_ARMS]],
        lines=_lines(board) if len(board.lines) else None,
        strong=_FIRST_COLUMNS[:2],
        **_conditions(board),
        commands=board.commands,
        notes=notes,
        agreements=agreements.to_numpy().tolist(),
        differences=differences[:MOST_DIFFERENCES],
        num_hidden_differences=max(0, len(differences) - MOST_DIFFERENCES),
        shown=f"{len(shown):,} of {len(drafters):,} turns" if len(shown) < len(drafters) else "",
        data=_embedded(answers),
    )


def _file(name: str) -> str:
    return (resources.files(__package__) / name).read_text(encoding="utf-8")


def _arm(board: Leaderboard, names: Sequence[object], lines: Iterable[Any]) -> dict[str, Any]:
    turns = board.turns[board.turns["line"].isin(lines)]
    figures = Series({each.name: each.figure(turns) for each in METRICS})
    paired = turns[turns["agreement"] != ""]
    speedup, sentence = gain(paired)
    cards = [(column.heading, str(column.cell(figures))) for column in _CARDS]
    return {
        "title": f"{names[0]}, {names[1]}",
        "speedup": speedup,
        "sentence": sentence if len(paired) else "",
        "speed": number(figures["tokens_per_second"], ".4g"),
        "num_turns": len(turns),
        "num_differing": len(paired) - int(paired["identical"].sum()),
        "tasks": ", ".join(sorted(set(board.lines.loc[lines, "task"]))),
        "cards": [("turns", f"{len(turns):,}"), *(card for card in cards if card[1])],
        "charts": list(filter(None, _charts(board, lines, turns))),
    }


def _lines(board: Leaderboard) -> Cells:
    """The leaderboard's cells, what a reader looks for first: task, speed-up, identical."""
    headings, rows = forms.line_cells(board)
    first = [name for name in _FIRST_COLUMNS if name in headings]
    moved = {"task", "model", "drafter", "score", *first}
    last = ["score"] if "score" in headings else []
    order = [*first, *(name for name in headings if name not in moved), *last]
    places = [headings.index(name) for name in order]
    arm = ["model", "drafter"] if board.lines["model"].nunique() > 1 else ["drafter"]
    named = zip(board.lines["task"], board.lines[arm].agg(", ".join, axis=1), rows, strict=True)
    cells = [[f"{task} ({name})", *(row[place] for place in places)] for task, name, row in named]
    return ["task", *order], cells


def _conditions(board: Leaderboard) -> dict[str, Cells]:
    """Tables of the settings that all lines share, the machine's and others, and of the rest."""
    shared, distinct, _ = conditions(board)
    machine: list[list[object]] = []
    others: list[list[object]] = []
    for name, value in shared.items():
        (machine if name.startswith(_MACHINE) else others).append([name, value])
    names = sorted({name for each in distinct for name in each})
    numbers = [str(place) for place in range(1, len(distinct) + 1)]
    return {
        "machine": (["machine and versions", "value"], machine),
        "others": (["drafting, model and evaluation", "value"], others),
        "differing": (
            ["setting", *numbers],
            [[name, *(each.get(name, "") for each in distinct)] for name in names],
        ),
    }


def _charts(board: Leaderboard, lines: Iterable[Any], turns: DataFrame) -> Iterator[Chart | None]:
    for line in lines:
        task, drafter = board.lines.loc[line, ["task", "drafter"]]
        by_turn = board.by_turn.loc[line]
        yield charts.speeds(task, "by turn", drafter, by_turn.rename(index="turn {}".format))
        yield charts.speed_by_context(task, drafter, turns[turns["line"] == line])
        for turn, by_category in board.by_category.loc[line].groupby("turn"):
            if len(by_category) > 1:
                what = f"turn {turn}, by category"
                yield charts.speeds(task, what, drafter, by_category.droplevel("turn"))
    yield charts.accepted_lengths([board.records[row] for row in turns.index])
    yield charts.latencies(turns)


def _differences(board: Leaderboard) -> list[list[str]]:
    rows = []
    for place, turn in board.turns[board.turns["difference_position"].notna()].iterrows():
        record = board.records[place]
        start = max(0, (first_difference(record.answer, record.text) or 0) - _SNIPPET // 2)
        names = board.lines.loc[turn["line"], ["task", "drafter"]]
        key = str(record.doc_id), str(record.turn), turn["agreement"].replace("_", "-")
        excerpts = (text[start : start + _SNIPPET] for text in (record.answer, record.text))
        link = f"#/{_key(record, names['drafter'])}/{record.turn}"
        rows.append([*names, *key, f"{turn['difference_position']:.0f}", *excerpts, link])
    return rows


def _chosen(board: Leaderboard) -> set[Any]:
    """Index of all turns, or of whole documents: the differing ones, then others evenly spread."""
    turns = board.turns
    if len(turns) <= MOST_TURNS:
        return set(turns.index)
    documents = turns.groupby(["line", "run_id", "conversation"], sort=False)
    differs = documents["difference_position"].transform("count") > 0
    chosen: set[Any] = set()
    for part in (turns[differs], turns[~differs]):
        groups = list(part.groupby(["line", "run_id", "conversation"], sort=False).groups.values())
        count = len(part) and (MOST_TURNS - len(chosen)) * len(groups) // len(part)
        count = min(count, len(groups))
        for place in range(count):
            chosen.update(groups[place * len(groups) // count])
    return chosen


def _key(record: TurnRecord, drafter: str) -> str:
    """What links call a conversation: the turns of a document by an arm of a run."""
    parts = (record.run_id, record.task, record.doc_id, drafter, record.repeat)
    return "/".join(quote(str(part), safe="!'()*", errors="replace") for part in parts)


def _turn(record: TurnRecord, drafter: str) -> dict[str, Any]:
    counts, baseline = record.counts, record.baseline
    in_order = steps(record)
    fields = {
        "key": _key(record, drafter),
        "task": record.task,
        "doc": record.doc_id,
        "turn": record.turn,
        "repeat": record.repeat or None,
        "category": record.category,
        "drafter": drafter,
        "run": record.run_id,
        "seconds": None if counts.seconds is None else round(counts.seconds, 4),
        "tokens": counts.num_tokens,
        "forwards": counts.num_forwards,
        "copied": counts_columns(counts)["copied_tokens"],
        "steps": in_order and in_order.counts,
        "ordered": in_order and in_order.is_ordered,
        "baseline_seconds": baseline.counts.seconds if baseline else None,
        "agreement": baseline.agreement if baseline else None,
        "withheld": bool(record.tokens_sha256) or None,
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
