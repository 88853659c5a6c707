"""Charts as SVG whose colours the page sets, so that one drawing serves light and dark."""

from __future__ import annotations

import io
import textwrap
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import matplotlib
import numpy
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import NDArray

from copyspec_eval.records import TurnRecord
from copyspec_eval.reports.leaderboard import Line

# Colours that nothing else has; the page's style knows the names.
_COLOURS = {"#000001": "ink", "#000002": "faint", "#000003": "drafted", "#000004": "plain"}
_INK, _FAINT, _DRAFTED, _PLAIN = _COLOURS
_STYLE = {
    "svg.fonttype": "none",
    # A dollar in a category's name is a dollar.
    "text.parse_math": False,
    "svg.hashsalt": "copyspec",
    "font.family": "sans-serif",
    "font.size": 9,
    "text.color": _INK,
    "axes.labelcolor": _INK,
    "axes.edgecolor": _FAINT,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.titlesize": 10,
    "xtick.color": _INK,
    "ytick.color": _INK,
    "grid.color": _FAINT,
    "grid.alpha": 0.3,
    "legend.frameon": False,
    "figure.facecolor": "none",
    "axes.facecolor": "none",
}
Points = NDArray[numpy.float64]

_SIZE = (4.4, 3.0)
_MARGINS = {"left": 0.14, "right": 0.98, "bottom": 0.21, "top": 0.91}
_ABOVE: dict[str, Any] = {"loc": "lower left", "bbox_to_anchor": (0, 1), "ncols": 2}
_FEWEST_GROUPS = 4
_MOST_POINTS = 500
_LONGEST_LABEL = 14


@dataclass(frozen=True, slots=True)
class Chart:
    """A drawing, what it shows in a line, and its SVG."""

    title: str
    note: str
    svg: str


def draw(title: str, note: str, plot: Callable[[Axes], None]) -> Chart:
    """A chart that `plot` draws on axes."""
    with matplotlib.rc_context(_STYLE):
        # Found for each chart, the margins would take as long as all else.
        figure = Figure(figsize=_SIZE)
        plot(figure.subplots(gridspec_kw=_MARGINS))
        drawn = io.StringIO()
        figure.savefig(drawn, format="svg", transparent=True, metadata={"Date": None})
    svg = drawn.getvalue()
    for colour, name in _COLOURS.items():
        svg = svg.replace(colour, f"var(--{name})")
    return Chart(title, note, svg[svg.index("<svg") :])


def speed_by_turn(line: Line) -> Chart:
    """Tokens per second of each turn, with drafts and without."""
    return _speeds(line, {turn: figures for turn, figures in line.by_turn.items()}, "by turn")


def speed_by_category(line: Line, turn: str) -> Chart:
    """The same of each category of a turn."""
    return _speeds(line, line.by_turn[turn]["by_category"], f"{turn}, by category")


def _speeds(line: Line, groups: dict[str, dict[str, float | None]], what: str) -> Chart:
    names = list(groups)
    drafted = [groups[name]["tokens_per_second"] or 0.0 for name in names]
    plain = [groups[name]["baseline_tokens_per_second"] for name in names]

    def plot(axes: Axes) -> None:
        places = numpy.arange(len(names))
        both = any(value is not None for value in plain)
        width = 0.4 if both else 0.6
        beside = places + (width / 2 if both else 0)
        axes.bar(beside, drafted, width, color=_DRAFTED, label=line.drafter)
        if both:
            values = [value or 0.0 for value in plain]
            axes.bar(places - width / 2, values, width, color=_PLAIN, label="plain")
        labels = [textwrap.shorten(name, _LONGEST_LABEL, placeholder="…") for name in names]
        axes.set_xticks(places, labels, rotation=30 if len(names) > 4 else 0)
        # A single pair of bars does not fill the chart.
        margin = max(0.6, (_FEWEST_GROUPS - len(names)) / 2)
        axes.set_xlim(-margin, len(names) - 1 + margin)
        axes.set_ylabel("tokens/s")
        axes.grid(axis="y")
        axes.legend(**_ABOVE)

    return draw(f"{line.task}: tokens per second", what, plot)


def speed_by_context(rows: Sequence[TurnRecord]) -> Chart | None:
    """Decode speed against context length, a line fitted to each arm; None with too few turns."""
    arms = {_DRAFTED: ("with drafts", _points(rows)), _PLAIN: ("plain", _plain_points(rows))}
    fits = {
        colour: (name, points, numpy.polyfit(points[:, 0], points[:, 1], 1))
        for colour, (name, points) in arms.items()
        if len(points) > 2 and numpy.ptp(points[:, 0]) > 0
    }
    if not fits:
        return None

    def plot(axes: Axes) -> None:
        for colour, (name, points, fit) in fits.items():
            shown = points[:: -(-len(points) // _MOST_POINTS)]
            axes.plot(*shown.T, ".", color=colour, alpha=0.5, markersize=4, label=name)
            ends = numpy.array([points[:, 0].min(), points[:, 0].max()])
            axes.plot(ends, numpy.polyval(fit, ends), color=colour)
        axes.set_xlabel("tokens of prompt and half the answer")
        axes.set_ylabel("decode tokens/s")
        axes.set_ylim(bottom=0)
        axes.grid()
        axes.legend(**_ABOVE)

    slopes = [f"{name} {100 * fit[0]:+,.1f}" for name, _, fit in fits.values()]
    note = f"tokens/s per 100 tokens of context: {', '.join(slopes)} (least squares)"
    return draw("Speed as the context grows", note, plot)


def _points(rows: Sequence[TurnRecord]) -> Points:
    """Of each turn, tokens of context at the middle of the answer, and tokens per second there."""
    found = [
        (row.num_prompt_tokens + row.num_tokens / 2, (row.num_tokens - given) / row.decode_seconds)
        for row in rows
        if row.num_prompt_tokens is not None
        and row.num_tokens is not None
        and (given := row.num_prefill_tokens) is not None
        and row.decode_seconds
        and row.num_tokens > given
    ]
    return numpy.array(found).reshape(-1, 2)


def _plain_points(rows: Sequence[TurnRecord]) -> Points:
    """The same of the baseline, whose prefill gives one token."""
    found = [
        (asked + plain.num_tokens / 2, (plain.num_tokens - 1) / plain.decode_seconds)
        for row in rows
        if (asked := row.num_prompt_tokens) is not None
        and (plain := row.baseline)
        and plain.decode_seconds
        and plain.num_tokens > 1
    ]
    return numpy.array(found).reshape(-1, 2)


def accepted_lengths(rows: Sequence[TurnRecord]) -> Chart | None:
    """How many tokens of each draft were accepted; None if nothing was drafted."""
    accepted = [accepted for row in rows for _, accepted, _ in row.attempts]
    if not accepted:
        return None

    def plot(axes: Axes) -> None:
        axes.hist(
            numpy.array(accepted), bins=[i - 0.5 for i in range(max(accepted) + 2)], color=_DRAFTED
        )
        axes.set_xlabel("accepted tokens of a draft")
        axes.set_ylabel("drafts")
        axes.grid(axis="y")

    none = sum(length == 0 for length in accepted) / len(accepted)
    return draw(
        "Accepted lengths", f"{len(accepted):,} drafts, {none:.0%} of them rejected at once", plot
    )


def latencies(rows: Sequence[TurnRecord]) -> Chart:
    """Share of turns that were answered within a time."""
    arms = {
        _DRAFTED: ("with drafts", sorted(row.latency_seconds for row in rows)),
        _PLAIN: ("plain", sorted(row.baseline.latency_seconds for row in rows if row.baseline)),
    }

    def plot(axes: Axes) -> None:
        for colour, (name, seconds) in arms.items():
            if seconds:
                axes.ecdf(seconds, color=colour, label=name)
        axes.set_xlabel("seconds")
        axes.set_ylabel("share of turns answered")
        axes.grid()
        axes.legend(**_ABOVE)

    middle = arms[_DRAFTED][1][len(rows) // 2]
    return draw("Latency", f"half of the turns within {middle:.3g} s with drafts", plot)
