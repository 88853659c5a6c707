"""A leaderboard as Markdown, CSV and JSON, in the layout of the paper's tables."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from pandas import DataFrame, Series

from copyspec_eval.reports.leaderboard import Leaderboard, conditions
from copyspec_eval.reports.ratings import PREFIX
from copyspec_eval.reports.tables import markdown, number, without_empty_columns

_FORMULA = ("=", "+", "-", "@", "\t", "\r")
"""How a cell begins that a spreadsheet would compute."""


def as_markdown(board: Leaderboard) -> str:
    """The tables, the conditions, the commands and the notes."""
    parts = ["# Leaderboard\n"]
    parts += [markdown(*cells(board))] if len(board.lines) else ["Nothing was answered.\n"]
    if len(board.by_turn) > len(board.lines):
        parts.append(f"## By turn\n\n{markdown(*_turns(board))}")
    for task in sorted(set(board.lines.get("task", ()))):
        table = _categories(board, task)
        if table is not None:
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
    in_line = ["; ".join(f"{n}={v}" for n, v in settings.items()) for settings in distinct]
    lines = [f"{place}. {text or 'as above'}" for place, text in enumerate(in_line, start=1)]
    return [f"All: {'; '.join(f'{n}={v}' for n, v in shared.items())}\n", *lines]


def cells(board: Leaderboard) -> tuple[list[str], list[list[object]]]:
    """The main table: headers, and a row per line; columns that are empty are left out."""
    turns = sorted({turn for _, turn in board.by_turn.index})
    _, _, numbers = conditions(board)
    headers = ["model", "task", "drafter", "documents", "answers", "runs", "score"]
    headers += [f"tok/s (×) turn {turn}" for turn in turns]
    headers += ["baseline tok/s", "speed-up (95%)", "median (95%)", "copied", "from earlier runs"]
    headers += [
        "recycled",
        "accepted/attempt",
        "model accepted/attempt",
        "tok/forward",
        "cut by length",
        "looped",
        "identical",
    ]
    headers += ["date", "conditions"]
    rows = []
    for place, line in board.lines.iterrows():
        speeds = [
            _speed(board.by_turn.loc[place, turn]) if (place, turn) in board.by_turn.index else ""
            for turn in turns
        ]
        rows.append([*_cells(line, speeds), line["date"], str(numbers[int(str(place))] + 1)])
    return without_empty_columns(headers, rows)


def _cells(line: Series[Any], speeds: Sequence[str]) -> list[str]:
    return [
        line["model"],
        line["task"],
        line["drafter"],
        documents(line),
        str(line["turns"]),
        str(line["runs"]) if line["runs"] > 1 else "",
        ", ".join(f"{name} {score}" for name, score in scores(line).items()),
        *speeds,
        figure(line, "baseline_tokens_per_second", ".4g"),
        with_interval(line, "speedup"),
        with_interval(line, "speedup_median"),
        figure(line, "copied_share", ".0%"),
        figure(line, "earlier_share", ".0%"),
        figure(line, "recycled_share", ".0%"),
        figure(line, "accepted_per_attempt", ".2f"),
        figure(line, "model_accepted_per_attempt", ".2f"),
        figure(line, "tokens_per_forward", ".2f"),
        figure(line, "cut_share", ".0%"),
        figure(line, "looped_share", ".1%"),
        figure(line, "identical", ".1%"),
    ]


def documents(line: Series[Any]) -> str:
    """How many documents were answered, of how many the task has: "20 of 80"."""
    of = line["documents_of"]
    return f"{line['documents']}" + (f" of {of:.0f}" if of == of and of is not None else "")


def scores(line: Series[Any]) -> dict[str, str]:
    """lm-eval's scores of a line, by metric, and judges' ratings."""
    names = [str(name) for name in line.index if str(name).startswith("score_")]
    texts = {name: figure(line, name, ".3g") for name in names if not name.endswith("_spread")}
    by_metric = {name.removeprefix("score_"): text for name, text in texts.items() if text}
    return by_metric | ratings(line)


def ratings(figures: Series[Any]) -> dict[str, str]:
    """Judges' ratings of a line, a turn or a category: `{"rating by gpt-4": "7.31"}`."""
    names = [str(name) for name in figures.index if str(name).startswith(PREFIX)]
    texts = {name: number(figures[name], ".2f") for name in names}
    return {f"rating by {name.removeprefix(PREFIX)}": text for name, text in texts.items() if text}


def figure(figures: Series[Any], name: str, form: str) -> str:
    """A metric, and its spread where several runs were taken together; nothing without a value."""
    value, spread = figures[name], number(figures.get(f"{name}_spread"), form)
    return number(value, form) + (f" ±{spread}" if spread else "")


def with_interval(figures: Series[Any], name: str) -> str:
    """A speed-up with its interval: "1.88 (1.62 to 2.20)"."""
    low, high = (number(figures[f"{name}_{end}"], ".2f") for end in ("low", "high"))
    return figure(figures, name, ".2f") + (f" ({low} to {high})" if low else "")


_OF_SOURCES = {"context": "context", "store": "store", "earlier": "earlier runs"}


def _turns(board: Leaderboard) -> tuple[list[str], list[list[object]]]:
    """Headers and a row per line and turn: what each turn is made of."""
    headers = ["model", "task", "drafter", "turn", "tok/s (×)", "copied", "recycled"]
    headers += [f"τ ({name})" for name in _OF_SOURCES.values()] + ["τ (draft model)"]
    headers += ["tok/forward", "cut by length", "looped", "rating", "identical"]
    rows = []
    for (place, turn), figures in board.by_turn.iterrows():
        line = board.lines.loc[place]
        names = [line["model"], line["task"], line["drafter"], str(turn)]
        rows.append(
            [
                *names,
                _speed(figures),
                figure(figures, "copied_share", ".1%"),
                figure(figures, "recycled_share", ".1%"),
                *(figure(figures, f"{of}_accepted_per_attempt", ".2f") for of in _OF_SOURCES),
                figure(figures, "model_accepted_per_attempt", ".2f"),
                figure(figures, "tokens_per_forward", ".2f"),
                figure(figures, "cut_share", ".0%"),
                figure(figures, "looped_share", ".1%"),
                ", ".join(ratings(figures).values()),
                figure(figures, "identical", ".1%"),
            ]
        )
    return without_empty_columns(headers, rows)


def _speed(figures: Series[Any]) -> str:
    speedup = number(figures["speedup"], ".2f")
    return figure(figures, "tokens_per_second", ".4g") + (f" ({speedup})" if speedup else "")


def _categories(board: Leaderboard, task: str) -> tuple[list[str], list[list[str]]] | None:
    """Headers and a row per line and turn; None where there is but one category."""
    places = board.lines.index[board.lines["task"] == task]
    figures = board.by_category[board.by_category.index.get_level_values("line").isin(places)]
    names = sorted(set(figures.index.get_level_values("category")))
    if len(names) < 2:
        return None
    rows = []
    for place, turn in dict.fromkeys((place, turn) for place, turn, _ in figures.index):
        line = board.lines.loc[place]
        of_categories = [
            _speed(figures.loc[place, turn, name]) if (place, turn, name) in figures.index else ""
            for name in names
        ]
        total = _speed(board.by_turn.loc[place, turn])
        rows.append([line["model"], line["drafter"], str(turn), *of_categories, total])
    return ["model", "drafter", "turn", *names, "all"], rows


def as_json(board: Leaderboard) -> str:
    """All figures, nothing rounded: of each line, of its turns, and of their categories."""
    lines = []
    for place, line in board.lines.iterrows():
        by_turn: dict[str, Any] = {}
        for turn, row in board.by_turn.loc[place].iterrows():
            categories = board.by_category.loc[place, turn].iterrows()
            by_category = {str(name): _values(of_category) for name, of_category in categories}
            by_turn[str(turn)] = _values(row) | {"by_category": by_category}
        settings = _values(board.settings.loc[place])
        lines.append(_values(line) | {"settings": settings, "by_turn": by_turn})
    return json.dumps({"lines": lines, "notes": board.notes}, indent=2, ensure_ascii=False) + "\n"


def _values(row: Series[Any]) -> dict[str, Any]:
    """A row as JSON values; what is unknown is None."""
    return {
        str(name): None if value != value else value for name, value in row.astype(object).items()
    }


def csv_files(board: Leaderboard) -> dict[str, str]:
    """Files for analysis by name: a row per line, per line and turn, and per category, too.

    One column per setting, metric and score, so that no cell needs parsing. A text that a
    spreadsheet would take for a formula gets an apostrophe in front.
    """
    names = board.lines[["model", "task", "drafter"]]
    return {
        "leaderboard.csv": _csv(board.lines.join(board.settings.add_prefix("spec."))),
        "leaderboard_by_turn.csv": _csv(names.join(board.by_turn).reset_index()),
        "leaderboard_by_category.csv": _csv(names.join(board.by_category).reset_index()),
    }


def _csv(table: DataFrame) -> str:
    text: str = table.map(_harmless).to_csv(index=False, lineterminator="\n")
    return text


def _harmless(value: Any) -> Any:
    return f"'{value}" if isinstance(value, str) and value.startswith(_FORMULA) else value


FORMS = {
    "md": as_markdown,
    "csv": lambda board: csv_files(board)["leaderboard.csv"],
    "json": as_json,
}
"""By what `--format` calls them."""
