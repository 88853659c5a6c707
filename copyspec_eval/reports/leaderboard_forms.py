"""A leaderboard as one screen, Markdown, CSV and JSON, in the layout of the paper's tables."""

import json
from collections.abc import Iterator
from typing import Any

from pandas import DataFrame, Series

from copyspec_eval.errors import printable
from copyspec_eval.reports.conversations import PREFIX
from copyspec_eval.reports.leaderboard import Leaderboard, conditions
from copyspec_eval.reports.results import TURN_SCORE
from copyspec_eval.reports.tables import (
    FIRST_FIGURES,
    Cells,
    Column,
    cells,
    figure,
    interval_column,
    markdown,
    metric_column,
    metric_columns,
    number,
    terminal,
    text_column,
)
from copyspec_eval.types import COPIED

_FORMULA = ("=", "+", "-", "@", "\t", "\r")  # how a cell starts that spreadsheets would compute


def _speed(figures: "Series[Any]") -> str:
    speedup = number(figures["speedup"], ".2f")
    return figure(figures, "tokens_per_second", ".4g") + (f" ({speedup})" if speedup else "")


_SPEED = Column("tokens/s (×)", _speed)
RATING = Column("rating", lambda row: ", ".join(ratings(row).values()))

_NAMES = ["model", "task", "drafter"]
_RUNS = Column("runs", lambda row: f"{row['runs']:.0f}" if row["runs"] > 1 else "")
_SPEEDUPS = [interval_column(f"speedup{which}") for which in ("_ended", "")]


def overview(board: Leaderboard, is_wide: bool = False) -> str:
    """For a terminal: a row per line and turn, and the notes; more columns if it is wide."""
    varied = {name for name in _NAMES if is_wide or board.lines[name].nunique() > 1} | {"task"}
    wide = [
        Column("answers", lambda row: f"{row['turns']:.0f}"),
        Column("score", lambda row: ", ".join(_turn_scores(board, *row.name))),
        interval_column("speedup"),
        metric_column("baseline_tokens_per_second", ".0f"),
        interval_column("speedup_median"),
        *metric_columns(".0%", "copied_share", "cut_share", "looped_share"),
    ]
    columns = [
        *(text_column(name) for name in ("model", "task") if name in varied),
        Column("turn", lambda row: str(row.name[1])),
        *([text_column("drafter")] if "drafter" in varied else []),
        _RUNS,
        *FIRST_FIGURES,
        *(wide if is_wide else []),
    ]
    notes = "".join(f"note: {printable(note)}\n" for note in board.notes)
    return terminal(*cells(columns, _by_turn(board)), "simple") + notes


def as_markdown(board: Leaderboard) -> str:
    parts = ["# Leaderboard\n"]
    parts += [markdown(*line_cells(board))] if len(board.lines) else ["Nothing was answered.\n"]
    if len(board.by_turn) > len(board.lines):
        parts.append(f"## By turn\n\n{markdown(*cells(_TURN_COLUMNS, _by_turn(board)))}")
    for task in sorted(set(board.lines["task"])):
        if table := _category_cells(board, task):
            parts.append(f"## {task} by category\n\ntokens/s (speed-up)\n\n{markdown(*table)}")
    if len(board.lines):
        parts.append("## Conditions\n\n" + "".join(f"{line}\n" for line in in_words(board)))
        parts.append("## Commands\n\n```\n" + "".join(f"{c}\n" for c in board.commands) + "```\n")
    if board.notes:
        parts.append("## Notes\n\n" + "".join(f"* {note}\n" for note in board.notes))
    return "\n".join(parts)


def in_words(board: Leaderboard) -> list[str]:
    """The settings that all lines share, then the numbered ones that only some have."""
    shared, distinct, _ = conditions(board)
    texts = ["; ".join(f"{n}={v}" for n, v in settings.items()) for settings in distinct]
    lines = [f"{place}. {text or 'as above'}" for place, text in enumerate(texts, start=1)]
    return [f"All: {'; '.join(f'{n}={v}' for n, v in shared.items())}\n", *lines]


def line_cells(board: Leaderboard) -> Cells:
    _, _, numbers = conditions(board)
    by_turn = board.by_turn.apply(_SPEED.cell, axis=1).unstack("turn", fill_value="")
    by_turn = by_turn.add_prefix(f"{_SPEED.heading} turn ")
    columns = [
        *map(text_column, _NAMES),
        Column("documents", documents),
        Column("answers", lambda line: str(line["turns"])),
        _RUNS,
        Column("score", lambda line: ", ".join(map(" ".join, scores(line).items()))),
        *map(text_column, by_turn.columns),
        metric_column("baseline_tokens_per_second", ".4g"),
        *_SPEEDUPS,
        interval_column("speedup_median"),
        *metric_columns(".0%", "copied_share", "earlier_share"),
        *metric_columns(".2f", "accepted_per_attempt", "model_accepted_per_attempt"),
        metric_column("tokens_per_forward", ".2f"),
        metric_column("cut_share", ".0%"),
        *metric_columns(".1%", "looped_share", "identical"),
        text_column("date"),
        Column("conditions", lambda line: str(numbers[line.name] + 1)),
    ]
    return cells(columns, board.lines.join(by_turn))


_TURN_COLUMNS = [
    *map(text_column, _NAMES),
    Column("turn", lambda row: str(row.name[1])),
    _SPEED,
    _SPEEDUPS[0],
    metric_column("copied_share", ".1%"),
    *metric_columns(".2f", *(f"{source}_accepted_per_attempt" for source in COPIED)),
    metric_column("model_accepted_per_attempt", ".2f", "τ (draft model)"),
    metric_column("tokens_per_forward", ".2f"),
    metric_column("cut_share", ".0%"),
    metric_column("looped_share", ".1%"),
    RATING,
    metric_column("identical", ".1%"),
]


def _by_turn(board: Leaderboard) -> DataFrame:
    return board.lines[_NAMES].join(board.by_turn)


def _category_cells(board: Leaderboard, task: str) -> Cells | None:
    """A row per line and turn, a column per category; None if there is only one."""
    places = board.lines.index[board.lines["task"] == task]
    by_category = board.by_category.loc[board.by_category.index.isin(places, level="line")]
    speeds = by_category.apply(_SPEED.cell, axis=1).unstack("category", fill_value="")
    if len(speeds.columns) < 2:
        return None
    rows: list[list[object]] = []
    for (place, turn), row in speeds.iterrows():
        model, drafter = board.lines.loc[place, ["model", "drafter"]]
        rows.append([model, drafter, str(turn), *row, _SPEED.cell(board.by_turn.loc[place, turn])])
    return ["model", "drafter", "turn", *speeds.columns, "all"], rows


def documents(line: "Series[Any]") -> str:
    """How many documents were answered, of how many the task has: "20 of 80"."""
    total = number(line["documents_of"], ".0f")
    return f"{line['documents']}" + (f" of {total}" if total else "")


def scores(line: "Series[Any]") -> dict[str, str]:
    """lm-eval's scores of a line, by metric, and judges' ratings."""
    names = [str(name) for name in line.index if str(name).startswith("score_")]
    texts = {name: figure(line, name, ".3g") for name in names if not name.endswith("_spread")}
    by_metric = {name.removeprefix("score_"): text for name, text in texts.items() if text}
    return by_metric | ratings(line)


def _turn_scores(board: Leaderboard, place: int, turn: int) -> Iterator[str]:
    """`name value` of each score of a turn; the last turn also has the scores of all turns."""
    last = max(board.by_turn.loc[place].index)
    for name, score in scores(board.lines.loc[place]).items():
        on_turn = TURN_SCORE.fullmatch(name)
        if turn == (int(on_turn[2]) if on_turn else last):
            yield f"{on_turn[1] if on_turn else name} {score}"


def ratings(figures: "Series[Any]") -> dict[str, str]:
    """Judges' ratings of a line, a turn or a category: `{"rating by gpt-4": "7.31"}`."""
    names = [str(name) for name in figures.index if str(name).startswith(PREFIX)]
    texts = {name: number(figures[name], ".2f") for name in names}
    return {f"rating by {name.removeprefix(PREFIX)}": text for name, text in texts.items() if text}


def as_json(board: Leaderboard) -> str:
    """All figures, nothing rounded: of each line, of its turns, and of their categories."""
    lines = []
    for place, line in board.lines.iterrows():
        by_turn: dict[str, Any] = {}
        for turn, row in board.by_turn.loc[place].iterrows():
            categories = board.by_category.loc[place, turn].iterrows()
            by_category = {str(name): _values(figures) for name, figures in categories}
            by_turn[str(turn)] = _values(row) | {"by_category": by_category}
        settings = _values(board.settings.loc[place])
        lines.append(_values(line) | {"settings": settings, "by_turn": by_turn})
    return json.dumps({"lines": lines, "notes": board.notes}, indent=2, ensure_ascii=False) + "\n"


def _values(row: "Series[Any]") -> dict[str, Any]:
    items = row.astype(object).items()
    return {str(name): None if value != value else value for name, value in items}


def csv_files(board: Leaderboard) -> dict[str, str]:
    """By line, turn and category; an apostrophe precedes what a spreadsheet would compute."""
    tables = {
        "leaderboard.csv": board.lines.join(board.settings.add_prefix("spec.")),
        "leaderboard_by_turn.csv": _by_turn(board).reset_index(),
        "leaderboard_by_category.csv": board.lines[_NAMES].join(board.by_category).reset_index(),
    }

    def harmless(value: Any) -> Any:
        return f"'{value}" if isinstance(value, str) and value.startswith(_FORMULA) else value

    return {
        name: table.map(harmless).to_csv(index=False, lineterminator="\n")
        for name, table in tables.items()
    }


# Files, by what `--format` calls them.
FORMS = {"md": as_markdown, "csv": lambda each: csv_files(each)["leaderboard.csv"], "json": as_json}
