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
from pandas import DataFrame

from copyspec_eval.records import TurnRecord

# Colours that nothing else has; the page's style knows the names.
_COLOURS = {"#000001": "ink", "#000002": "faint", "#000003": "drafted", "#000004": "baseline"}
_INK, _FAINT, _DRAFTED, _BASELINE = _COLOURS
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


def speeds(task: str, what: str, drafter: str, figures: DataFrame) -> Chart:
    """Tokens per second of each row of `figures`, with drafts and by the baseline."""
    names = [str(name) for name in figures.index]
    drafted = figures["tokens_per_second"].astype(float).fillna(0.0).to_list()
    baseline = figures["baseline_tokens_per_second"].astype(float)

    def plot(axes: Axes) -> None:
        places = numpy.arange(len(names))
        both = bool(baseline.notna().any())
        width = 0.4 if both else 0.6
        axes.bar(places + (width / 2 if both else 0), drafted, width, color=_DRAFTED, label=drafter)
        if both:
            values = baseline.fillna(0.0).to_list()
            axes.bar(places - width / 2, values, width, color=_BASELINE, label="baseline")
        labels = [textwrap.shorten(name, _LONGEST_LABEL, placeholder="…") for name in names]
        axes.set_xticks(places, labels, rotation=30 if len(names) > 4 else 0)
        # A single pair of bars does not fill the chart.
        margin = max(0.6, (_FEWEST_GROUPS - len(names)) / 2)
        axes.set_xlim(-margin, len(names) - 1 + margin)
        axes.set_ylabel("tokens/s")
        axes.grid(axis="y")
        axes.legend(**_ABOVE)

    return draw(f"{task}: tokens per second", what, plot)


def speed_by_context(turns: DataFrame) -> Chart | None:
    """Decode speed against context length, a line fitted to each arm; None with too few turns."""
    arms = {
        _DRAFTED: ("with drafts", _points(turns, "")),
        _BASELINE: ("baseline", _points(turns, "baseline_")),
    }
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


def _points(turns: DataFrame, arm: str) -> Points:
    """Of each turn, tokens of context at the middle of the answer, and tokens per second there."""
    names = [f"{arm}{name}" for name in ("num_tokens", "decode_tokens", "decode_seconds")]
    values = turns[["num_prompt_tokens", *names]].dropna().to_numpy(dtype=float)
    prompt, tokens, decoded, seconds = values[(values[:, 2] > 0) & (values[:, 3] > 0)].T
    return numpy.stack([prompt + tokens / 2, decoded / seconds], axis=1)


def accepted_lengths(records: Sequence[TurnRecord]) -> Chart | None:
    """How many tokens of each draft were accepted; None if nothing was drafted."""
    accepted = [attempt.num_accepted for record in records for attempt in record.attempts]
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


def latencies(turns: DataFrame) -> Chart | None:
    """Share of turns that were answered within a time; None if no time is known."""
    arms = {
        _DRAFTED: ("with drafts", turns["latency_seconds"].dropna().sort_values()),
        _BASELINE: ("baseline", turns["baseline_latency_seconds"].dropna().sort_values()),
    }
    seconds = arms[_DRAFTED][1]
    if not len(seconds):
        return None

    def plot(axes: Axes) -> None:
        for colour, (name, values) in arms.items():
            if len(values):
                axes.ecdf(values, color=colour, label=name)
        axes.set_xlabel("seconds")
        axes.set_ylabel("share of turns answered")
        axes.grid()
        axes.legend(**_ABOVE)

    middle = seconds.iloc[len(seconds) // 2]
    return draw("Latency", f"half of the turns within {middle:.3g} s with drafts", plot)
