"""The paper's tables by name: what each needs, and how it is laid out."""

import itertools
import math
from collections.abc import Callable, Sequence
from io import BytesIO
from pathlib import Path
from typing import Any, NamedTuple

from matplotlib import rc_context
from matplotlib.figure import Figure
from pandas import DataFrame

from copyspec_eval import journal
from copyspec_eval.errors import OptionError, unknown_option
from copyspec_eval.paper import layouts, plan
from copyspec_eval.paper.plan import PlannedRun, Request
from copyspec_eval.redaction import shareable
from copyspec_eval.reports.leaderboard import leaderboard
from copyspec_eval.reports.leaderboard_forms import in_words
from copyspec_eval.reports.recorded import read_recorded
from copyspec_eval.reports.tables import terminal

_USUAL = "copyspec+gamma=3"
_GAMMAS = tuple(f"copyspec+gamma={gamma}" for gamma in range(2, 11))
_NUMBERS_COPIED = tuple(f"{_USUAL}+num_draft_tokens={n}" for n in (0, 1, 5, 10, 50, 100))
_CHATS = (plan.MT_REDUNDANT, plan.MT_BENCH)


def _with_draft_model(delta: int) -> tuple[str, ...]:
    """The draft model alone, and after copying at two γ."""
    drafting = f"draft_model={{}}+delta={delta}"
    return f"none+{drafting}", f"{_USUAL}+{drafting}", f"copyspec+gamma=5+{drafting}"


_CORRECTED = (_USUAL, "copyspec+gamma=5", *_with_draft_model(delta=3))


class Lines(NamedTuple):
    """A figure beside a table, by headings: a line per model, data set and y, over x."""

    x: str
    y: tuple[str, ...]
    unit: str


class PaperTable(NamedTuple):
    """A table and its runs, one per task and tuple of arms; "{}" is the draft model, if any."""

    title: str
    layout: Callable[[Sequence[layouts.Answered]], layouts.Table]
    tasks: Sequence[str] = (plan.MT_REDUNDANT,)
    arms: Sequence[tuple[str, ...]] = ((_USUAL,),)
    exact: bool = True
    lines: Lines | None = None

    def runs(self, request: Request) -> list[PlannedRun]:
        model = request.draft_model
        runs = []
        for task, arms in itertools.product(request.tasks or self.tasks, self.arms):
            usable = (arm.format(model) for arm in arms if model or "{}" not in arm)
            runs.append(PlannedRun(request, task, tuple(usable), self.exact))
        return runs


TABLES = {
    "main": PaperTable("Main results, per task and turn", layouts.main_results, [*plan.TASKS][:-1]),
    "categories": PaperTable("MT-Redundant and MT-Bench by category", layouts.categories, _CHATS),
    "gamma": PaperTable("MT-Redundant by γ", layouts.gammas, arms=[_GAMMAS]),
    "copied-tokens": PaperTable(  # exact steps do not hold a hundred
        "MT-Redundant by the number of copied tokens",
        *(layouts.numbers_copied, (plan.MT_REDUNDANT,), [_NUMBERS_COPIED], False),
    ),
    "draft-model": PaperTable(
        "MT-Redundant with a draft model, alone and behind copying",
        layouts.draft_models,
        arms=[_with_draft_model(delta) for delta in (3, 5, 10)],
    ),
    "self-correction": PaperTable(
        "GSM8K with self-correction", layouts.self_correction, (plan.GSM8K,), [_CORRECTED]
    ),
    "context-length": PaperTable(
        "Speed by the length of the prompt",
        *(layouts.context_lengths, _CHATS),
        lines=Lines("tokens of the prompt", ("base tokens/s", "CopySpec"), "tokens/s"),
    ),
    "similarity": PaperTable(
        "γ by the cosine similarity of a word and the γ before it",
        *(layouts.similarity_table, _CHATS),
        lines=Lines("γ", ("mean cosine similarity",), "cosine similarity"),
    ),
}


def table_named(name: str, request: Request) -> PaperTable:
    if request.limit is not None and request.limit < 1:
        raise OptionError(f"--limit must be at least 1, got {request.limit}")
    if name not in TABLES:
        raise unknown_option("table of the paper", name, TABLES)
    table = TABLES[name]
    for task in request.tasks:
        if task not in plan.TASKS:
            raise unknown_option("task of the paper", task, plan.TASKS)
    if request.tasks and table.layout is layouts.self_correction:
        raise OptionError(f"the table {name} is of {plan.GSM8K} alone; leave --tasks out")
    if not request.draft_model and any(all("{}" in arm for arm in arms) for arms in table.arms):
        raise OptionError(f"the table {name} needs a draft model; give --draft-model NAME")
    return table


def write(table: PaperTable, runs: Sequence[PlannedRun], path: Path) -> str:
    """The table as Markdown, written to `path` with its figure beside it.

    It has the cells, notes to read them with, conditions and commands.
    """
    all_runs = [layouts.Answered(run, leaderboard([read_recorded(run.folder)])) for run in runs]
    by_model = {
        Path(model).name: table.layout(list(of_model))
        for model, of_model in itertools.groupby(all_runs, lambda each: each.run.request.model)
    }
    headers = ["model", *next(iter(by_model.values())).headers]
    rows = [[model, *row] for model, each in by_model.items() for row in each.rows]
    notes = [note for each in by_model.values() for note in each.notes]
    notes += [shareable(note) for each in all_runs for note in each.board.notes]
    parts = [f"# {table.title}\n", terminal(headers, rows)]
    if table.lines and rows:
        journal.replace(path.with_suffix(".svg"), _drawn(table.lines, headers, rows))
        parts.append(f"![{table.title}]({path.stem}.svg)\n")
    parts.append("".join(f"* {note}\n" for note in dict.fromkeys(notes)))
    for each in all_runs:
        conditions = "".join(f"{line}\n" for line in in_words(each.board))
        parts.append(f"## Conditions of {each.run.folder.name}\n\n{conditions}")
    commands = "".join(f"{shareable(run.in_shell)}\n" for run in runs)
    parts.append(f"## Commands\n\n```\n{commands}```\n")
    journal.replace(path, text := "\n".join(parts))
    return text


def _drawn(lines: Lines, headers: Sequence[str], rows: Sequence[Sequence[Any]]) -> bytes:
    """The figure as SVG, the same bytes for the same rows."""
    frame = DataFrame(rows, columns=headers)
    series = [name for name in ("model", "data set") if name in headers]
    with rc_context({"svg.hashsalt": "copyspec", "svg.fonttype": "none"}):
        figure = Figure(layout="constrained")
        axes = figure.add_subplot(xlabel=lines.x, ylabel=lines.unit)
        for names, part in frame.groupby(series, sort=False):
            for y in lines.y:
                axes.plot(part[lines.x], part[y].astype(float), "o-", label=", ".join([*names, y]))
        axes.set_ylim(bottom=min(0.0, axes.get_ylim()[0]))
        axes.legend()
        figure.savefig(drawn := BytesIO(), format="svg", metadata={"Date": None})
    return drawn.getvalue()


def planned(runs: Sequence[PlannedRun], tokens_per_second: float) -> str:
    """The commands, and how long they take at most at the speed of plain decoding."""
    if not 0 < tokens_per_second < math.inf:
        actual = f"got {tokens_per_second} (default: 35.5)"
        raise OptionError(f"--tokens-per-second must be positive, {actual}")
    hours = sum(run.num_tokens for run in runs) / tokens_per_second / 3600
    estimate = f"# about {hours:.1f} hours at {tokens_per_second:g} tokens/s"
    return "\n".join([*(run.in_shell for run in runs), estimate, ""])
