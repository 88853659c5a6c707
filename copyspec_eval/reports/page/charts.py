"""Charts as SVG. The page sets their colours, so one drawing serves light and dark."""

import io
import textwrap
from collections.abc import Callable, Sequence
from typing import Any, Literal, NamedTuple

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
# The beginning of their columns in `turns.frame`, their names and colours.
_ARMS = (("", "with drafts", _DRAFTED), ("baseline_", "baseline", _BASELINE))
_STYLE: dict[Any, Any] = {
    **{"font.size": 9, "axes.titlesize": 10, "grid.alpha": 0.3, "svg.hashsalt": "copyspec"},
    **dict.fromkeys(("text.color", "axes.labelcolor", "xtick.color", "ytick.color"), _INK),
    **dict.fromkeys(("axes.edgecolor", "grid.color"), _FAINT),
    **dict.fromkeys(("axes.spines.top", "axes.spines.right", "legend.frameon"), False),
    **dict.fromkeys(("figure.facecolor", "axes.facecolor", "svg.fonttype"), "none"),
    "text.parse_math": False,  # a dollar in a category's name is a dollar
}
_Grid = Literal["both", "y"]

_SIZE = (4.4, 3.0)
_MARGINS = {"left": 0.14, "right": 0.98, "bottom": 0.21, "top": 0.91}
_FEWEST_GROUPS, _MOST_POINTS, _LONGEST_LABEL = 4, 500, 14
_MARKERS = "o^sDv"  # of turns


class Chart(NamedTuple):
    title: str
    note: str
    svg: str


def _draw(
    title: str, note: str, labels: tuple[str, str], grid: _Grid, plot: Callable[[Axes], None]
) -> Chart:
    with matplotlib.rc_context(_STYLE):
        # Computing the margins of each chart would take as long as all else.
        figure = Figure(figsize=_SIZE)
        axes = figure.subplots(gridspec_kw=_MARGINS)
        plot(axes)
        axes.set(xlabel=labels[0], ylabel=labels[1])
        axes.grid(axis=grid)
        if axes.get_legend_handles_labels()[1]:
            axes.legend(loc="lower left", bbox_to_anchor=(0, 1), ncols=2)
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

    return _draw(f"{task}: tokens per second", what, ("", "tokens/s"), "y", plot)


def speed_by_context(task: str, drafter: str, turns: DataFrame) -> Chart | None:
    """Decode speed against context length, a line per turn and arm; None with too few answers.

    Later turns copy more and have longer contexts: one line through all would show that instead.
    """
    fits = [
        (name, colour, turn, points, numpy.polyfit(points[:, 0], points[:, 1], 1, cov=True))
        for prefix, name, colour in _ARMS
        for turn, in_turn in turns.groupby("turn")
        if len(points := _points(in_turn, prefix)) > 2 and numpy.ptp(points[:, 0]) > 0
    ]
    if not fits:
        return None

    def plot(axes: Axes) -> None:
        for name, colour, turn, points, (fit, _) in fits:
            shown = points[:: -(-len(points) // _MOST_POINTS)]
            marker = _MARKERS[(int(str(turn)) - 1) % len(_MARKERS)]
            axes.plot(*shown.T, marker, color=colour, alpha=0.5, markersize=4)
            ends = numpy.array([points[:, 0].min(), points[:, 0].max()])
            named = axes.get_legend_handles_labels()[1]
            label = "" if name in named else name
            axes.plot(ends, numpy.polyval(fit, ends), color=colour, label=label)
            place = float(ends[1]), float(numpy.polyval(fit, ends[1]))
            axes.annotate(f" {turn}", place, color=colour, va="center")
        axes.set_ylim(bottom=0)

    slopes: dict[str, list[str]] = {}
    for name, _, turn, points, (fit, covariance) in fits:
        percent = 100 * 100 / points[:, 1].mean()
        slope, error = percent * fit[0], percent * covariance[0, 0] ** 0.5
        slopes.setdefault(name, []).append(f"turn {turn} {slope:+.1f} ±{error:.1f}")
    texts = [f"{name}: {', '.join(by_turn)}" for name, by_turn in slopes.items()]
    what = "% of the mean speed per 100 tokens of context (least squares, ± standard error)"
    labels = ("tokens of prompt and half the answer", "decode tokens/s")
    title = f"{task}: speed as the context grows"
    return _draw(title, f"{drafter}; {'; '.join(texts)}; {what}", labels, "both", plot)


def _points(turns: DataFrame, prefix: str) -> NDArray[numpy.float64]:
    """Of each turn, tokens of context at the middle of the answer, and tokens per second there."""
    names = [f"{prefix}{name}" for name in ("num_tokens", "decode_tokens", "decode_seconds")]
    values = turns[["num_prompt_tokens", *names]].dropna().to_numpy(dtype=float)
    prompt, tokens, decoded, seconds = values[(values[:, 2] > 0) & (values[:, 3] > 0)].T
    return numpy.stack([prompt + tokens / 2, decoded / seconds], axis=1)


def accepted_lengths(records: Sequence[TurnRecord]) -> Chart | None:
    """How many tokens of each draft were accepted; None if nothing was drafted."""
    accepted = [attempt.num_accepted for record in records for attempt in record.attempts]
    if not accepted:
        return None

    def plot(axes: Axes) -> None:
        bins = [length - 0.5 for length in range(max(accepted) + 2)]
        axes.hist(numpy.array(accepted), bins=bins, color=_DRAFTED)

    none = sum(length == 0 for length in accepted) / len(accepted)
    note = f"{len(accepted):,} drafts, {none:.0%} of them rejected at once"
    labels = ("accepted tokens of a draft", "drafts")
    return _draw("Accepted lengths", note, labels, "y", plot)


def latencies(turns: DataFrame) -> Chart | None:
    """Share of turns that were answered within a time; None if no time is known."""
    seconds = turns["latency_seconds"].dropna().sort_values()
    if not len(seconds):
        return None

    def plot(axes: Axes) -> None:
        for prefix, name, colour in _ARMS:
            values = turns[f"{prefix}latency_seconds"].dropna().sort_values()
            if len(values):
                axes.ecdf(values, color=colour, label=name)

    note = f"half of the turns within {seconds.iloc[len(seconds) // 2]:.3g} s with drafts"
    return _draw("Latency", note, ("seconds", "share of turns answered"), "both", plot)
