"""The paper's tables by name: what each needs, and how it is laid out."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

from copyspec_eval.errors import OptionError, unknown_option
from copyspec_eval.paper import layouts, plan
from copyspec_eval.paper.plan import PlannedRun, Request
from copyspec_eval.paper.similarity import similarity_table
from copyspec_eval.redaction import shareable
from copyspec_eval.reports.leaderboard import leaderboard
from copyspec_eval.reports.leaderboard_forms import in_words
from copyspec_eval.reports.recorded import read_recorded
from copyspec_eval.reports.tables import terminal


class PaperTable(NamedTuple):
    """A table or figure of the paper: the runs that it needs, and its cells from them."""

    title: str
    runs: Callable[[Request], list[PlannedRun]]
    layout: Callable[[Sequence[layouts.Answered]], layouts.Table]
    needs_draft_model: bool = False


TABLES = {
    "main": PaperTable("Main results, per task and turn", plan.main_results, layouts.main_results),
    "categories": PaperTable(
        "MT-Redundant and MT-Bench by category", plan.conversations, layouts.categories
    ),
    "gamma": PaperTable("MT-Redundant by γ", plan.gammas, layouts.gammas),
    "copied-tokens": PaperTable(
        "MT-Redundant by the number of copied tokens", plan.numbers_copied, layouts.numbers_copied
    ),
    "draft-model": PaperTable(
        "MT-Redundant with a draft model, alone and behind copying",
        plan.draft_models,
        layouts.draft_models,
        needs_draft_model=True,
    ),
    "self-correction": PaperTable(
        "GSM8K with self-correction", plan.self_correction, layouts.self_correction
    ),
    "context-length": PaperTable(
        "Speed by the length of the prompt", plan.conversations, layouts.context_lengths
    ),
    "similarity": PaperTable(
        "γ by the cosine similarity of a word and the γ before it",
        plan.conversations,
        similarity_table,
    ),
}


def table_named(name: str, request: Request) -> PaperTable:
    """The table of that name.

    Raises:
        OptionError: there is none, it needs a draft model and none is given, or the limit is wrong.
    """
    if request.limit is not None and request.limit < 1:
        raise OptionError(f"--limit {request.limit} is not a number of documents of at least 1")
    if name not in TABLES:
        raise unknown_option("table of the paper", name, TABLES)
    if TABLES[name].needs_draft_model and not request.draft_model:
        raise OptionError(f"the table {name} needs a draft model; give --draft-model NAME")
    return TABLES[name]


def render(table: PaperTable, request: Request) -> str:
    """The table as Markdown: its cells, what it is to be read with, conditions and commands.

    Raises:
        DataError: a run is missing or broken.
    """
    runs = table.runs(request)
    folders = [run.folder(request) for run in runs]
    boards = [leaderboard([read_recorded(folder)]) for folder in folders]
    answered = list(map(layouts.Answered, runs, folders, boards))
    headers, rows, notes = table.layout(answered)
    notes += [shareable(note) for board in boards for note in board.notes]
    parts = [f"# {table.title}\n", terminal(headers, rows)]
    parts.append("".join(f"* {note}\n" for note in dict.fromkeys(notes)))
    for each in answered:
        conditions = "".join(f"{line}\n" for line in in_words(each.board))
        parts.append(f"## Conditions of {each.run.name}\n\n{conditions}")
    commands = "".join(f"{shareable(plan.in_shell(run.command(request)))}\n" for run in runs)
    parts.append(f"## Commands\n\n```\n{commands}```\n")
    return "\n".join(parts)


def planned(table: PaperTable, request: Request, tokens_per_second: float) -> str:
    """The commands, and how long they take at most at the speed of plain decoding.

    Raises:
        OptionError: it is no speed.
    """
    if not 0 < tokens_per_second < math.inf:
        raise OptionError(f"--tokens-per-second {tokens_per_second} is no speed; usual is 35.5")
    runs = table.runs(request)
    hours = sum(run.num_tokens(request) for run in runs) / tokens_per_second / 3600
    lines = [plan.in_shell(run.command(request)) for run in runs]
    return "\n".join([*lines, f"# about {hours:.1f} hours at {tokens_per_second:g} tokens/s", ""])
