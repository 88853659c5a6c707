"""The cells of the paper's tables, from the runs that a table needs.

Every layout takes the runs in the order in which `plan` lists them. Speeds and their ratios are of
one run: each of its arms beside its own baseline.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from pandas import Series, concat, cut

from copyspec_eval.paper import published
from copyspec_eval.paper.plan import GSM8K, MT_BENCH, MT_REDUNDANT, NUM_TURNS, PlannedRun
from copyspec_eval.reports.leaderboard import Leaderboard
from copyspec_eval.reports.leaderboard_forms import documents, ratings
from copyspec_eval.reports.summary import figures_by
from copyspec_eval.reports.tables import figure, with_interval, without_empty_columns

NAMES = {
    MT_REDUNDANT: "MT-Redundant",
    "cnn_dailymail_extractive_paper": "CNN/DM",
    GSM8K: "GSM-8K",
    MT_BENCH: "MT-Bench",
    "humaneval_evalplus_paper": "HumanEval",
}
"""The data sets as the paper calls them, in its order."""

_SCORES = {
    "cnn_dailymail_extractive_paper": "score_rougeL_unstemmed",
    GSM8K: "score_acc_turn3",
    "humaneval_evalplus_paper": "score_pass@1_base",
}
_PROMPT_LENGTHS = (0, 128, 256, 512, 1024, 2048, 10**9)


class Answered(NamedTuple):
    """A run, its folder and its figures."""

    run: PlannedRun
    folder: Path
    board: Leaderboard

    def line(self, **drafting: Any) -> Any:
        """The line of the arm with these settings."""
        settings = self.board.settings
        fits = Series(True, index=settings.index)
        for name, value in drafting.items():
            of_lines = settings[f"drafting.{name}"]
            fits &= of_lines.isna() if value is None else of_lines == value
        [line] = settings.index[fits]
        return line

    def all_turns(self, line: Any) -> Series[Any]:
        """The figures of a line."""
        return self.board.lines.loc[line]

    def turn(self, line: Any, turn: int) -> Series[Any]:
        """The figures of one of its turns."""
        figures: Series[Any] = self.board.by_turn.loc[line, turn]
        return figures


class Table(NamedTuple):
    """A table, and what it is to be read with, a sentence each."""

    headers: list[str]
    rows: list[list[object]]
    notes: list[str]


def main_results(runs: Sequence[Answered]) -> Table:
    """The paper's main table: a column per data set, a row per variant and metric."""
    columns = [_main_column(each) for task in NAMES for each in runs if each.run.task == task]
    names = [name for task, name in NAMES.items() if any(each.run.task == task for each in runs)]
    keys = list(dict.fromkeys(key for column in columns for key in column))
    rows: list[list[object]] = [[*key, *(col.get(key, "") for col in columns)] for key in keys]
    notes = [
        f"{NAMES[task]}, turn {turn}: the paper's best speed-up is {best}"
        for (task, turn), best in published.BEST_SPEEDUPS.items()
    ]
    return Table(["variant", "metric", *names], rows, [*notes, published.SOURCE])


def _main_column(answered: Answered) -> dict[tuple[str, str], str]:
    """The cells of one data set by variant and metric."""
    line, task = answered.line(drafter="copyspec"), answered.run.task
    figures = answered.all_turns(line)
    column = {
        ("both", "documents"): _documents(answered, line),
        ("both", "score"): score(answered, line),
        ("base model", "tokens/s"): figure(figures, "baseline_tokens_per_second", ".2f"),
        ("CopySpec", "% copied"): figure(figures, "copied_share", ".2%"),
        ("CopySpec", "tokens/s"): figure(figures, "tokens_per_second", ".2f"),
        ("CopySpec", "speed-up (95%)"): with_interval(figures, "speedup"),
        ("CopySpec", "τ"): figure(figures, "accepted_per_attempt", ".2f"),
        ("CopySpec", "identical"): figure(figures, "identical", ".1%"),
    }
    for turn in range(1, NUM_TURNS[task] + 1):
        of_turn = answered.turn(line, turn)
        base = figure(of_turn, "baseline_tokens_per_second", ".2f")
        column["base model", f"tokens/s, turn {turn}"] = base
        column["CopySpec", f"tokens/s, turn {turn}"] = figure(of_turn, "tokens_per_second", ".2f")
        column["CopySpec", f"speed-up, turn {turn}"] = figure(of_turn, "speedup", ".2f")
    return column


def categories(runs: Sequence[Answered]) -> Table:
    """A row per category: on each turn base model, copying, speed-up, copied share and score."""
    turns = (1, 2)
    headers = ["data set", "category"]
    for turn in turns:
        headers += [f"turn {turn}: base tokens/s", "CopySpec", "speed-up", "% copied", "score"]
    rows: list[list[object]] = []
    for each in runs:
        line = each.line(drafter="copyspec")
        of_line = each.board.by_category.loc[line]
        for category in sorted(set(of_line.index.get_level_values("category"))):
            parts = [of_line.loc[turn, category] for turn in turns]
            rows.append([NAMES[each.run.task], category, *_of_turns(parts)])
        parts = [each.turn(line, turn) for turn in turns]
        rows.append([NAMES[each.run.task], "average", *_of_turns(parts)])
    best = published.BEST_SPEEDUPS[MT_REDUNDANT, 2]
    notes = [f"the paper's best category of MT-Redundant has {best} on turn 2", published.SOURCE]
    return Table(headers, rows, notes)


def _of_turns(parts: Sequence[Series[Any]]) -> list[str]:
    return [
        cell
        for part in parts
        for cell in (
            figure(part, "baseline_tokens_per_second", ".2f"),
            figure(part, "tokens_per_second", ".2f"),
            figure(part, "speedup", ".2f"),
            figure(part, "copied_share", ".1%"),
            ", ".join(ratings(part).values()),
        )
    ]


def gammas(runs: Sequence[Answered]) -> Table:
    """A row per γ, under the base model's."""
    [answered] = runs
    lines = {
        int(answered.board.settings.at[line, "drafting.gamma"]): line
        for line in answered.board.lines.index
    }
    paper: dict[int | None, str] = {
        gamma: f"{speed} ({speed / published.PLAIN_TOKENS_PER_SECOND:.2f})"
        for gamma, speed in published.BY_GAMMA.items()
    }
    paper[None] = f"{published.PLAIN_TOKENS_PER_SECOND}"
    base = _base_cells(answered, lines[min(lines)])
    rows: list[list[object]] = [["base model", *base, paper[None]]]
    rows += [
        [f"γ = {gamma}", *_arm_cells(answered, lines[gamma]), paper.get(gamma, "")]
        for gamma in sorted(lines)
    ]
    return Table(["", *_ARM_HEADERS, "paper (×)"], rows, [published.SOURCE])


def numbers_copied(runs: Sequence[Answered]) -> Table:
    """A row per number of copied tokens, under the base model's; 0 is what looking alone costs."""
    [answered] = runs
    lines = {
        int(answered.board.settings.at[line, "drafting.num_draft_tokens"]): line
        for line in answered.board.lines.index
    }
    rows: list[list[object]] = [["base model", *_base_cells(answered, lines[min(lines)])]]
    rows += [[str(copied), *_arm_cells(answered, lines[copied])] for copied in sorted(lines)]
    return Table(["tokens copied", *_ARM_HEADERS], rows, [])


_ARM_HEADERS = [
    *("tokens/s", "speed-up (95%)", "turn 1: tokens/s", "speed-up", "turn 2: tokens/s", "speed-up"),
    *("% copied", "τ", "identical"),
]


def _arm_cells(answered: Answered, line: Any) -> list[str]:
    figures = answered.all_turns(line)
    cells = [figure(figures, "tokens_per_second", ".2f"), with_interval(figures, "speedup")]
    for turn in (1, 2):
        of_turn = answered.turn(line, turn)
        cells += [figure(of_turn, "tokens_per_second", ".2f"), figure(of_turn, "speedup", ".2f")]
    cells += [
        figure(figures, "copied_share", ".2%"),
        figure(figures, "accepted_per_attempt", ".2f"),
    ]
    return [*cells, figure(figures, "identical", ".1%")]


def _base_cells(answered: Answered, line: Any) -> list[str]:
    """What `_arm_cells` gives, of the baseline that all arms share."""
    name, form = "baseline_tokens_per_second", ".2f"
    by_turn = [figure(answered.turn(line, turn), name, form) for turn in (1, 2)]
    return [figure(answered.all_turns(line), name, form), "", by_turn[0], "", by_turn[1], *[""] * 4]


def draft_models(runs: Sequence[Answered]) -> Table:
    """A row per δ and category: on each turn base model, draft model, and copying before it."""
    headers = ["δ", "category"]
    for turn in (1, 2):
        headers += [f"turn {turn}: base tokens/s", "draft model", "copying (γ = 3) + draft model"]
        headers += ["copying (γ = 5) + draft model"]
    rows: list[list[object]] = []
    notes: list[str] = []
    for each in runs:
        alone = each.line(drafter="none")
        behind = [each.line(drafter="copyspec", gamma=gamma) for gamma in (3, 5)]
        lines, delta = [alone, *behind], each.board.settings.at[alone, "drafting.delta"]
        by_category = each.board.by_category
        for category in sorted(set(by_category.loc[alone].index.get_level_values("category"))):
            cells = _speeds([[by_category.loc[n, t, category] for n in lines] for t in (1, 2)])
            rows.append([str(delta), category, *cells])
        cells = _speeds([[each.turn(line, turn) for line in lines] for turn in (1, 2)])
        rows.append([str(delta), "average", *cells])
        notes += [
            f"δ = {delta}, turn {turn}: copying (γ = 3) + draft model is "
            f"{over_draft_model(each, alone, behind[0], turn):+.0%} over the draft model alone"
            for turn in (1, 2)
        ]
    notes.append(f"the paper has {published.COPYING_OVER_DRAFT_MODEL:+.0%} on turn 2, on average")
    return Table(headers, rows, notes)


def over_draft_model(answered: Answered, alone: Any, copying: Any, turn: int) -> float:
    """By how much copying before a draft model is faster than that model alone, in one run."""
    speeds = [answered.turn(line, turn)["tokens_per_second"] for line in (copying, alone)]
    return float(speeds[0] / speeds[1] - 1)


def _speeds(by_turn: Sequence[Sequence[Series[Any]]]) -> list[str]:
    cells: list[str] = []
    for arms in by_turn:
        cells.append(figure(arms[0], "baseline_tokens_per_second", ".2f"))
        cells += [figure(arm, "tokens_per_second", ".2f") for arm in arms]
    return cells


def self_correction(runs: Sequence[Answered]) -> Table:
    """A row per variant: on each turn copied share, speed, τ of copies, and of the draft model."""
    [answered] = runs
    headers = ["variant"]
    for turn in (1, 2, 3):
        headers += [f"turn {turn}: % copied", "tokens/s", "speed-up", "τ1", "τ2"]
    board = answered.board
    rows: list[list[object]] = []
    for line in board.lines.index:
        cells: list[str] = []
        base: list[str] = []
        for turn in (1, 2, 3):
            figures = answered.turn(line, turn)
            base += ["", figure(figures, "baseline_tokens_per_second", ".2f"), "", "", ""]
            cells += [
                figure(figures, "copied_share", ".2%"),
                figure(figures, "tokens_per_second", ".2f"),
                figure(figures, "speedup", ".2f"),
                figure(figures, "accepted_per_attempt", ".2f"),
                figure(figures, "model_accepted_per_attempt", ".2f"),
            ]
        if not rows:
            rows.append(["base model", *base])
        rows.append([board.lines.at[line, "drafter"], *cells])
    first = answered.all_turns(board.lines.index[0])
    right = [figure(first, f"score_acc_turn{turn}", ".3f") for turn in (1, 3)]
    notes = [f"right after turn 1: {right[0]}, after turn 3: {right[1]}"] if all(right) else []
    best = published.BEST_SPEEDUPS[GSM8K, 3]
    notes.append(f"the paper's best speed-up on turn 3 is {best}")
    headers, rows = without_empty_columns(headers, rows)
    return Table(headers, rows, [*notes, published.SOURCE])


def context_lengths(runs: Sequence[Answered]) -> Table:
    """A row per range of prompt lengths, over both data sets."""
    frames = [each.board.turns for each in runs]
    parts = [
        frame.assign(conversation=frame["doc_id"] + 1000 * n) for n, frame in enumerate(frames)
    ]
    turns = concat(parts, ignore_index=True)
    turns["length"] = cut(turns["num_prompt_tokens"], [*_PROMPT_LENGTHS], right=False)
    figures = figures_by(turns.dropna(subset=["length"]), ["length"])
    rows: list[list[object]] = [
        [
            f"{range_.left} to {range_.right - 1}" if range_.right < 10**9 else f"{range_.left} up",
            str(part["turns"]),
            figure(part, "baseline_tokens_per_second", ".2f"),
            figure(part, "tokens_per_second", ".2f"),
            with_interval(part, "speedup"),
            figure(part, "copied_share", ".1%"),
        ]
        for range_, part in figures.iterrows()
        if part["turns"]
    ]
    headers = ["tokens of the prompt", "answers", "base tokens/s", "CopySpec", "speed-up (95%)"]
    return Table([*headers, "% copied"], rows, [])


def score(answered: Answered, line: Any) -> str:
    """The paper's score of a task; of conversations a judge's rating, if there is one."""
    figures = answered.all_turns(line)
    name = _SCORES.get(answered.run.task)
    if name is None:
        return ", ".join(ratings(figures).values())
    return figure(figures, name, ".3g") if name in figures.index else ""


def _documents(answered: Answered, line: Any) -> str:
    """How many were answered of how many the task has."""
    return documents(answered.all_turns(line))
