"""Tables in Markdown: columns, cells, their layout, and those of one run and of a replay."""

import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

from pandas import DataFrame, Series
from tabulate import tabulate

from copyspec_eval.records import TurnRecord
from copyspec_eval.reports import turns
from copyspec_eval.reports.earlier_runs import Trace
from copyspec_eval.reports.summary import ALL_METRICS, figures_by, known, summarise
from copyspec_eval.types import TurnCounts

_NUMBER = re.compile(r"[-+]?[\d.,]+(e[-+]?\d+)?%?( ±[\d.,]+%?)?")
_ESCAPES = str.maketrans({"|": r"\|", "`": r"\`", "<": "&lt;", "\n": " ", "\r": " "})
_METRICS = {metric.name: metric for metric in ALL_METRICS}

Cells = tuple[list[str], list[list[object]]]  # headings and rows


class Column(NamedTuple):
    """A heading, and the cell of a row; `turn` where a table has turns beside each other."""

    heading: str
    cell: "Callable[[Series[Any]], object]"
    turn: int | None = None


def text_column(name: str) -> Column:
    return Column(name, lambda row: row[name])


def metric_column(name: str, form: str, heading: str | None = None) -> Column:
    """A metric, with its spread over runs, in a number format."""
    return Column(heading or _METRICS[name].heading, lambda row: figure(row, name, form))


def metric_columns(form: str, *names: str) -> list[Column]:
    return [metric_column(name, form) for name in names]


def interval_column(name: str) -> Column:
    """A speed-up with its 95 % confidence interval: "1.88 (1.62 to 2.20)"."""

    def cell(row: "Series[Any]") -> str:
        low, high = (number(row[f"{name}_{end}"], ".2f") for end in ("low", "high"))
        text = figure(row, name, ".2f") + (f" ({low} to {high})" if low else "")
        has_none = name == "speedup_ended" and not text and number(row["speedup"], ".2f")
        return "none ended" if has_none else text

    return Column(_METRICS[name].heading, cell)


def cells(columns: Sequence[Column], frame: DataFrame) -> Cells:
    """A table of the rows of `frame`, without the columns that would be empty."""
    rows = [[column.cell(row) for column in columns] for _, row in frame.iterrows()]
    return without_empty_columns([column.heading for column in columns], rows)


def figure(figures: "Series[Any]", name: str, form: str) -> str:
    """A metric, and its spread where several runs were taken together; "" without a value."""
    value, spread = figures[name], number(figures.get(f"{name}_spread"), form)
    return number(value, form) + (f" ±{spread}" if spread else "")


def number(value: float | None, form: str) -> str:
    return "" if value is None or value != value else format(value, form)


def markdown(headers: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    r"""A Markdown table whose cells show what they hold, whatever that is.

    >>> print(markdown(["name", "n"], [["a|b", 1]]), end="")
    | name   |   n |
    |:-------|----:|
    | a\|b   |   1 |
    """
    return terminal(headers, [[str(cell).translate(_ESCAPES) for cell in row] for row in rows])


def terminal(headers: Sequence[str], rows: Sequence[Sequence[object]], form: str = "pipe") -> str:
    """The same, nothing escaped; columns of numbers are aligned right. Nothing without rows.

    `form` is a name of tabulate's; "simple" needs the least room.
    """
    if not rows:
        return ""
    texts = [["" if cell is None else str(cell) for cell in row] for row in rows]
    columns = zip(*texts, strict=True)
    numeric = [all(not cell or _NUMBER.fullmatch(cell) for cell in column) for column in columns]
    align = ["right" if right else "left" for right in numeric]
    table = tabulate(texts, headers, form, disable_numparse=True, colalign=align)
    return f"{table}\n"


def without_empty_columns(headers: Sequence[str], rows: Sequence[Sequence[object]]) -> Cells:
    full = [index for index in range(len(headers)) if any(row[index] != "" for row in rows)]
    return [headers[index] for index in full], [[row[index] for index in full] for row in rows]


_REPLAYED = (
    *("tokens_per_forward", "copied_share", "earlier_share", "drafted_per_token"),
    "accepted_per_attempt",
)
FIRST_FIGURES = [
    metric_column("tokens_per_second", ".0f"),
    interval_column("speedup_ended"),
    *metric_columns(".0%", "earlier_share", "identical"),
]
"""What a terminal shows of a run: with task and turn, it fits into 80 columns."""


def run_figures(rows: Sequence[TurnRecord]) -> dict[str, Any]:
    """`{task: {"turn 1": {metric: value, …, "by_category": {name: {metric: value, …}}}, …}}`."""
    frame = turns.frame(rows)
    results: dict[str, Any] = {}
    for (task, turn), part in frame.groupby(["task", "turn"]):
        results.setdefault(task, {})[f"turn {turn}"] = summarise(part) | {"by_category": {}}
    for (task, turn, name), part in frame.groupby(["task", "turn", "category"]):
        results[task][f"turn {turn}"]["by_category"][name] = summarise(part)
    return results


def run_table(rows: Sequence[TurnRecord]) -> str:
    """A row per task, turn and drafter, which is named if there are several."""
    figures = figures_by(turns.frame(rows), ["task", "turn", "drafter"]).reset_index()
    if figures["drafter"].nunique() == 1:
        figures["drafter"] = ""
    columns = [*map(text_column, ("task", "turn", "drafter")), *FIRST_FIGURES]
    return terminal(*cells(columns, figures), "simple")


def gains(rows: Sequence[TurnRecord]) -> list[str]:
    """What each drafter of a paired run won, in a sentence; nothing of runs that are not paired."""
    frame = turns.frame([row for row in rows if row.baseline])
    by_drafter = {name: gain(part)[1] for name, part in frame.groupby("drafter")}
    is_one = len(by_drafter) == 1
    return [text if is_one else f"{name}: {text}" for name, text in by_drafter.items()]


def gain(paired: DataFrame) -> tuple[str, str]:
    """The speed-up of the paired turns that ended (of all, if none did), and a sentence on it.

    >>> gain(turns.frame([]))
    ('', '0 of 0 answers identical')
    """
    count, ended = len(paired), int(paired["ended"].count())
    answers = "answer" if ended == 1 else f"{ended} answers"
    which = f" over the {answers} that ended" if ended < count else ""
    identical = f"{paired['identical'].sum():.0f} of {count} answers identical"
    for name, over in (("speedup_ended", which), ("speedup", " over all answers (none ended)")):
        figures = _METRICS[name].figure(paired), *_METRICS[name].interval(paired)
        speedup, low, high = (number(each, ".2f") for each in figures)
        if speedup:
            word = "faster" if float(speedup) >= 1 else "as fast"
            interval = f" (95 %: {low} to {high})" if low else " (one conversation only)"
            return f"{speedup}×", f"{speedup}× {word}{over}{interval}, {identical}"
    return "", identical


def replay_figures(
    replayed: Iterable[tuple[Trace, TurnCounts]], token_cost: float
) -> dict[str, Any]:
    """Sums and ratios, in total, by turn and by category; plain decoding has a cost of 1."""
    rows = [
        {"turn": str(trace.turn), "category": trace.category, **turns.counts_columns(counts)}
        for trace, counts in replayed
    ]
    frame = DataFrame(rows).assign(conversation=range(len(rows)))
    unused = set() if frame["earlier_drafted"].sum() else {"earlier_share"}
    metrics = [_METRICS[name] for name in _REPLAYED if name not in unused]

    def figures(part: DataFrame) -> dict[str, Any]:
        names = ["num_tokens", "num_forwards", "drafted_tokens", "copy_attempts"]
        tokens, forwards, drafted, attempts = (int(total) for total in part[names].sum())
        return {
            "turns": len(part),
            "tokens": tokens,
            "forwards": forwards,
            **{metric.name: known(metric.figure(part)) for metric in metrics},
            "cost_per_token": (forwards + token_cost * drafted) / tokens,
            "attempts": attempts,
        }

    return {
        "total": figures(frame),
        "by_turn": {str(name): figures(part) for name, part in frame.groupby("turn")},
        "by_category": {str(name): figures(part) for name, part in frame.groupby("category")},
    }


def replay_table(figures: dict[str, Any]) -> str:
    groups = {"all": figures["total"]}
    groups |= {f"turn {name}": group for name, group in figures["by_turn"].items()}
    groups |= figures["by_category"]
    rows = [
        [name, *(number(each, "" if isinstance(each, int) else ".3f") for each in group.values())]
        for name, group in groups.items()
    ]
    return terminal(["", *groups["all"]], rows)
