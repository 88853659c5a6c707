"""Runs side by side: a line per model, task and drafter under one `RunSpec`."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from pandas import DataFrame, Series

from copyspec_eval.manifest import RunManifest
from copyspec_eval.records import TurnRecord
from copyspec_eval.redaction import shareable
from copyspec_eval.reports import turns
from copyspec_eval.reports.conversations import PREFIX
from copyspec_eval.reports.results import Rating, RecordedRun
from copyspec_eval.reports.summary import figures_by
from copyspec_eval.types import EXACT_MEANS

_UNKNOWN = "unknown"
_LISTED = 4  # a line lists a setting of at most this many items, e.g. documents
_MUCH_LOOPED = 0.2  # from this share of a line's tokens on, its speed-up says little
_LOOPED = "looped tokens are nearly free to copy; read speed-up (ended)"
_EARLIER = "tokens were copied from answers of earlier runs; that is no measure of a drafter"

# Settings that the label of a line names where they set it apart from others of its drafter.
_LABELLED = ("dtype", "batch_size", "drafting.", "model_args.", "evaluation.", "task.")
# Settings that the label has already.
_IN_LABEL = {f"drafting.{name}" for name in ("drafter", "store", "tree", "draft_model")}


@dataclass(frozen=True, slots=True)
class Leaderboard:
    """Figures of runs, and what was separated or is missing.

    `lines` has `model`, `task`, `drafter` and what sets it apart, `date` of the latest, figures,
    scores, `rating_JUDGE`, `documents` answered, `documents_of` the task, perhaps `runs_cut_short`.
    """

    lines: DataFrame
    by_turn: DataFrame
    by_category: DataFrame
    settings: DataFrame  # by line, see `RunSpec.settings`
    commands: list[str]
    turns: DataFrame  # with `line`, and `repetition` among the runs of the line
    records: list[TurnRecord]  # of each row of `turns`, by its index
    notes: list[str]


def leaderboard(runs: Iterable[RecordedRun]) -> Leaderboard:
    """Answers by model, task, drafter and `RunSpec`; equal specs are repetitions."""
    runs = list(runs)
    manifests = {run_id: manifest for run in runs for run_id, manifest in run.manifests.items()}
    records = [record for run in runs for record in run.records]
    frame = turns.frame(records)
    # A folder that was named twice counts once.
    frame = frame.drop_duplicates(["run_id", "task", "drafter", "turn", "doc_id", "repeat"])
    frame = _numbered(frame, manifests)
    lines, settings = _lines(frame, manifests, runs)
    rated = _ratings_by_line(frame, runs)

    def figures(*by: str) -> DataFrame:
        """The figures of each group, and the mean of each judge's ratings."""
        table = figures_by(frame, [*by])
        if rated.empty:
            return table
        means = rated.groupby([*by, "judge"])["score"].mean().unstack("judge")
        known = means.reindex(table.index).dropna(axis="columns", how="all")
        return table.join(known.add_prefix(PREFIX))

    board = Leaderboard(
        lines=lines.join(figures("line")),
        by_turn=figures("line", "turn"),
        by_category=figures("line", "turn", "category"),
        settings=settings,
        commands=sorted({shareable(manifest.command) for manifest in manifests.values()}),
        turns=frame,
        records=records,
        notes=[note for run in runs for note in run.notes],
    )
    board.notes.extend([*_unequal_repetitions(board), *_separate_lines(board)])
    board.lines["drafter"] = [_label(board, number) for number in board.lines.index]
    board.notes.extend(_copied_and_exact(board))
    return board


def _copied_and_exact(board: Leaderboard) -> Iterator[str]:
    """What to know of a speed-up before reading it; each note names all lines it is about."""
    names = {number: _name(board, number) for number in board.lines.index}
    kinds = ("looped_share", _MUCH_LOOPED, _LOOPED), ("earlier_share", 0.0, _EARLIER)
    for share, least, note in kinds:
        shares = board.lines.reindex(columns=[share])[share].astype(float)
        if lines := [f"{names[n]} ({value:.0%})" for n, value in shares.items() if value >= least]:
            yield f"{note}: {'; '.join(lines)}"
    steps = board.settings.reindex(columns=["drafting.steps"])["drafting.steps"]
    for kind, meaning in EXACT_MEANS.items():
        exact = board.lines.loc[steps == kind, ["model", "drafter"]].drop_duplicates()
        if lines := [", ".join(row) for row in exact.itertuples(index=False)]:
            yield f"exact mode gives {meaning}: {'; '.join(lines)}"


def _ratings_by_line(frame: DataFrame, runs: Sequence[RecordedRun]) -> DataFrame:
    rated = [
        (number, *rating)
        for (number, task), line in frame.groupby(["line", "task"])
        for run in runs
        if run.ratings and {*line["run_id"]} & {record.run_id for record in run.records}
        for rating in run.ratings
        if rating.task == task
    ]
    return DataFrame(rated, columns=["line", *Rating._fields])


def shown(value: Any) -> bool:
    """Whether a setting is set: neither missing, nor off, nor empty."""
    return not (value is None or value is False or value != value or value in ("", [], {}))


def _numbered(frame: DataFrame, manifests: dict[str, RunManifest]) -> DataFrame:
    """The turns with `model`, `spec`, `line` and `repetition`, in order of line and turn."""
    frame = frame.assign(model=_UNKNOWN, spec="")
    for (run_id, task), in_run in frame.groupby(["run_id", "task"]):
        if run_id in manifests:
            spec = manifests[run_id].spec
            names = [shareable(spec.model), spec.of_task(task).key()]
        else:  # what is not known of two runs may differ
            names = [_UNKNOWN, f"unknown {run_id}"]
        frame.loc[in_run.index, ["model", "spec"]] = names
    frame["line"] = frame.groupby(["model", "task", "drafter", "spec"], sort=True).ngroup()
    frame["repetition"] = _repetitions(frame)
    return frame.sort_values(["line", "turn", "doc_id", "repeat", "run_id"])


def _lines(
    frame: DataFrame, manifests: Mapping[str, RunManifest], runs: Sequence[RecordedRun]
) -> tuple[DataFrame, DataFrame]:
    scores = {key: values for run in runs for key, values in run.scores.items()}
    cut_short = {run_id for run in runs for run_id in run.cut_short}
    documents = {task: count for run in runs for task, count in run.documents.items()}
    lines: list[dict[str, Any]] = []
    settings: dict[int, dict[str, Any]] = {}
    for number, line in frame.groupby("line"):
        run_ids, first = sorted(line["run_id"].unique()), line.iloc[0]
        task, newest = first["task"], manifests.get(run_ids[-1])
        given = newest.spec.of_task(task).settings() if newest else {}
        settings[number] = {
            name: shareable(value) if isinstance(value, str) else value
            for name, value in given.items()
        }
        by_run = DataFrame([scores.get((run_id, task), {}) for run_id in run_ids])
        lines.append(
            {name: first[name] for name in ("model", "task", "drafter")}
            | {"date": newest.started_at[:10] if newest else _UNKNOWN}
            | {"documents": line["doc_id"].nunique(), "documents_of": documents.get(task)}
            | by_run.mean().add_prefix("score_").to_dict()
            | ({"runs_cut_short": len(cut_short.intersection(run_ids))} if cut_short else {})
            | by_run.std().dropna().add_prefix("score_").add_suffix("_spread").to_dict()
        )
    names = ["model", "task", "drafter", "date"]
    table = DataFrame(lines, columns=names + sorted({n for line in lines for n in line} - {*names}))
    table.index.name = "line"
    return table, DataFrame(list(settings.values()), index=list(settings), dtype=object)


def _repetitions(frame: DataFrame) -> "Series[int]":
    """By turn, the first repetition of its line in which no earlier run answered it."""
    numbers = Series(0, index=frame.index)
    for _, line in frame.groupby("line"):
        repetitions: list[set[tuple[int, ...]]] = []
        for _, run in line.groupby("run_id"):
            answered = set(run[["doc_id", "turn", "repeat"]].itertuples(index=False, name=None))
            free = [i for i, other in enumerate(repetitions) if answered.isdisjoint(other)]
            number = free[0] if free else len(repetitions)
            repetitions[number : number + 1] = [answered.union(*repetitions[number : number + 1])]
            numbers[run.index] = number
    return numbers


def _unequal_repetitions(board: Leaderboard) -> Iterator[str]:
    for number, line in board.turns.groupby("line"):
        counts = line["repetition"].value_counts().sort_index().tolist()
        if len(set(counts)) > 1:
            answers = f"its {len(counts)} runs have {', '.join(map(str, counts))} answers"
            yield f"{_name(board, number)}: {answers}; figures are over all of them"


def _separate_lines(board: Leaderboard) -> Iterator[str]:
    settings = board.settings.map(_text)
    arms = settings.get("drafting.arms")
    for before, number in pairwise(board.lines.index):
        if _name(board, number) != _name(board, before):
            continue
        if arms is not None and arms[number] == arms[before] != "unset":
            continue  # arms of one run
        differing = []
        for name in settings.columns[settings.loc[number] != settings.loc[before]]:
            both = (_brief(board.settings.at[place, name]) for place in (before, number))
            differing.append(f"{name} ({' / '.join(both)})")
        reason = ", ".join(differing) or "what is unknown of them, or in folders of the same name"
        yield f"{_name(board, number)}: kept separate: they differ in {reason}"


def _name(board: Leaderboard, number: Any) -> str:
    return ", ".join(board.lines.loc[number, ["model", "task", "drafter"]])


def _label(board: Leaderboard, number: int) -> str:
    """The drafter, and the settings in which it differs from other lines of its model and task."""
    lines, line = board.lines, board.lines.loc[number]
    alike = lines[(lines["model"] == line["model"]) & (lines["task"] == line["task"])]
    same = alike.index[alike["drafter"] == line["drafter"]]
    parts = [line["drafter"]]
    for name in board.settings.columns:
        # A request's settings distinguish a line from those of all drafters.
        rows = alike.index if name.startswith("evaluation.gen_kwargs.") else same
        values = {_text(board.settings.at[row, name]) for row in rows}
        value = board.settings.at[number, name]
        is_named = name.startswith(_LABELLED) and name not in _IN_LABEL and shown(value)
        if is_named and len(values) > 1:
            parts.append(f"{name.rpartition('.')[2]}={_brief(value)}")
    return ", ".join(parts)


def _text(value: Any) -> str:
    """A setting as text; what a run does not have is unset."""
    return "unset" if value is None or value != value else str(value)


def _brief(value: Any) -> str:
    """The same for people: [0, 4, 8, …, 76] is "20, 0 to 76"."""
    if isinstance(value, list) and len(value) > _LISTED:
        return f"{len(value)}, {value[0]} to {value[-1]}"
    return _text(value)


def conditions(board: Leaderboard) -> tuple[dict[str, str], list[dict[str, str]], list[int]]:
    """Settings that all lines share, the distinct sets of the others, and each line's."""
    rows = [
        {
            name: _text(value)
            for name, value in row.items()
            if not name.startswith("task.")
            and name not in {"model", *_IN_LABEL}
            and (shown(value) or (value is False and name.startswith("drafting.")))
        }
        for _, row in board.settings.iterrows()
    ]
    shared = dict(set.intersection(*(set(row.items()) for row in rows))) if rows else {}
    unshared = [{n: value for n, value in row.items() if n not in shared} for row in rows]
    distinct = [row for place, row in enumerate(unshared) if row not in unshared[:place]]
    return dict(sorted(shared.items())), distinct, [distinct.index(row) for row in unshared]
