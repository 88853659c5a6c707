"""The paper's tables by name: what each needs, and how it is laid out."""

import itertools
import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

from copyspec_eval.errors import OptionError, unknown_option
from copyspec_eval.paper import layouts, plan
from copyspec_eval.paper.plan import PlannedRun, Request
from copyspec_eval.redaction import shareable
from copyspec_eval.reports.leaderboard import leaderboard
from copyspec_eval.reports.leaderboard_forms import in_words
from copyspec_eval.reports.recorded import read_recorded
from copyspec_eval.reports.tables import terminal

_USUAL = "copyspec+gamma=3"
_GAMMAS = tuple(f"copyspec+gamma={gamma}" for gamma in plan.GAMMAS)
_NUMBERS_COPIED = tuple(f"{_USUAL}+num_draft_tokens={n}" for n in (0, 1, 5, 10, 50, 100))
_CHATS = (plan.MT_REDUNDANT, plan.MT_BENCH)


def _with_draft_model(delta: int) -> tuple[str, ...]:
    """The draft model alone, and behind copying at two γ."""
    drafting = f"draft_model={{}}+delta={delta}"
    return f"none+{drafting}", f"{_USUAL}+{drafting}", f"copyspec+gamma=5+{drafting}"


_CORRECTED = (_USUAL, "copyspec+gamma=5", *_with_draft_model(delta=3))


class PaperTable(NamedTuple):
    """A table and its runs, one per task and tuple of arms; "{}" is the draft model, if any."""

    title: str
    layout: Callable[[Sequence[layouts.Answered]], layouts.Table]
    tasks: Sequence[str] = (plan.MT_REDUNDANT,)
    arms: Sequence[tuple[str, ...]] = ((_USUAL,),)
    exact: bool = True

    def runs(self, request: Request) -> list[PlannedRun]:
        model = request.draft_model
        runs = []
        for task, arms in itertools.product(self.tasks, self.arms):
            usable = [arm.format(model) for arm in arms if model or "{}" not in arm]
            runs.append(plan.planned_run(task, usable, self.exact))
        return runs


TABLES = {
    "main": PaperTable("Main results, per task and turn", layouts.main_results, tuple(plan.TASKS)),
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
        "Speed by the length of the prompt", layouts.context_lengths, _CHATS
    ),
    "similarity": PaperTable(
        "γ by the cosine similarity of a word and the γ before it", layouts.similarity_table, _CHATS
    ),
}


def table_named(name: str, request: Request) -> PaperTable:
    if request.limit is not None and request.limit < 1:
        raise OptionError(f"--limit {request.limit} is not a number of documents of at least 1")
    if name not in TABLES:
        raise unknown_option("table of the paper", name, TABLES)
    table = TABLES[name]
    if not request.draft_model and any(all("{}" in arm for arm in arms) for arms in table.arms):
        raise OptionError(f"the table {name} needs a draft model; give --draft-model NAME")
    return table


def render(table: PaperTable, request: Request) -> str:
    """The table as Markdown: its cells, what it is to be read with, conditions and commands."""
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
    """The commands, and how long they take at most at the speed of plain decoding."""
    if not 0 < tokens_per_second < math.inf:
        actual = f"got {tokens_per_second} (default: 35.5)"
        raise OptionError(f"--tokens-per-second must be positive, {actual}")
    runs = table.runs(request)
    hours = sum(run.num_tokens(request) for run in runs) / tokens_per_second / 3600
    lines = [plan.in_shell(run.command(request)) for run in runs]
    return "\n".join([*lines, f"# about {hours:.1f} hours at {tokens_per_second:g} tokens/s", ""])
