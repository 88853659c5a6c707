"""Runs side by side: a line per model, task and drafter, and the conditions that they ran under."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from copyspec_eval.records import TurnRecord
from copyspec_eval.reports import table
from copyspec_eval.reports.recorded import Manifest, RecordedRun

_UNKNOWN = "unknown"

# Of a manifest's settings: those that have a place of their own, and those that go without saying.
_ELSEWHERE = {
    "pretrained",
    "model_type",
    "dtype",
    "device",
    "backend",
    "batch_size",
    "step_seconds",
}
_ELSEWHERE |= {"drafter", "store", "tree", "exact", "paired", "width"}
_USUAL: dict[str, Any] = {"revision": "main", "ranks": 1, "logits_processors": []}


@dataclass(frozen=True, slots=True, order=True)
class Conditions:
    """What has to be equal for two figures to be comparable.

    Attributes:
        hardware: processor or accelerators, and threads.
        dtype: of the weights.
        batch_size: rows decoded side by side.
        exact: whether in exact mode; "" for other backends.
        width: of an exact step, in tokens; "" where it follows the draft.
        paired: whether every answer has its plain one beside it.
        settings: of the model and the drafter, beyond those that have a place of their own.
        generation: of the requests, such as "do_sample=False".
        versions: of the packages that decide the numbers.
    """

    hardware: str
    dtype: str
    batch_size: str
    exact: str
    width: str
    paired: str
    settings: str
    generation: str
    versions: str


@dataclass(frozen=True, slots=True)
class Line:
    """One model's answers to one task by one way of drafting, under the same conditions.

    Attributes:
        model, task: see above.
        drafter: `TurnRecord.way`, and the settings in which it differs from other lines.
        conditions: see there.
        date: of the latest answer's run.
        commands: of the runs.
        scores: `{metric: value}`, lm-eval's.
        total: figures of all turns, as `table.values` gives them.
        by_turn: the same by "turn 1", …, each with "by_category".
        rows: the answers.
    """

    model: str
    task: str
    drafter: str
    conditions: Conditions
    date: str
    commands: tuple[str, ...]
    scores: dict[str, float]
    total: dict[str, float | int | None]
    by_turn: dict[str, Any]
    rows: list[TurnRecord]


@dataclass(frozen=True, slots=True)
class Leaderboard:
    """Lines, and what was not put together, or is missing."""

    lines: list[Line]
    notes: list[str]


def leaderboard(runs: Iterable[RecordedRun]) -> Leaderboard:
    """All runs' answers by model, task, drafter and conditions.

    Answers given under other conditions are kept in lines of their own, and said; of a turn that
    several runs answered under the same conditions, the latest run's answer counts.
    """
    groups: dict[tuple[str, str, str, Conditions], dict[tuple[int, int, int], _Row]] = {}
    notes: list[str] = []
    for run in runs:
        notes += run.notes
        for row in run.rows:
            manifest = run.manifests.get(row.run_id, {})
            found = _Row(row, manifest, run.scores.get((row.task, row.way), {}))
            key = found.model, row.task, row.way, found.conditions
            kept = groups.setdefault(key, {})
            place = row.doc_id, row.turn, row.repeat
            if place not in kept or kept[place].row.run_id <= row.run_id:
                kept[place] = found
    lines = [_line(*key, list(groups[key].values())) for key in sorted(groups)]
    notes += _kept_apart(lines)
    return Leaderboard([replace(line, drafter=_label(line, lines)) for line in lines], notes)


@dataclass(frozen=True, slots=True)
class _Row:
    """A record with what its run says beside it."""

    row: TurnRecord
    manifest: Manifest
    scores: Mapping[str, float]

    @property
    def model(self) -> str:
        return str(self.manifest.get("config", {}).get("pretrained") or _UNKNOWN)

    @property
    def conditions(self) -> Conditions:
        config, hardware = self.manifest.get("config", {}), self.manifest.get("hardware", {})
        versions = self.manifest.get("versions", {})
        exact = self.row.exact
        return Conditions(
            hardware=_hardware(hardware, str(config.get("device", ""))),
            dtype=str(config.get("dtype", _UNKNOWN)).removeprefix("torch."),
            batch_size=str(self.row.batch_size),
            exact="" if exact is None else str(exact).lower(),
            width=str(config.get("width") or ""),
            paired=str(self.row.baseline is not None).lower(),
            settings=_settings(config, self.row),
            generation=_UNKNOWN if self.row.generation is None else self.row.generation,
            versions=", ".join(f"{name} {versions[name]}" for name in sorted(versions)) or _UNKNOWN,
        )


def _hardware(hardware: Manifest, device: str) -> str:
    if not hardware:
        return _UNKNOWN
    accelerators = hardware.get("accelerators") or []
    if accelerators and not device.startswith("cpu"):
        return " + ".join(accelerators)
    return f"{hardware.get('processor', _UNKNOWN)}, {hardware.get('threads', '?')} threads"


def _settings(config: Manifest, row: TurnRecord) -> str:
    """Those that make a difference; γ does to the paper's rule alone, δ to a draft model."""
    silent = set(_ELSEWHERE)
    silent |= {name for name, value in _USUAL.items() if config.get(name) == value}
    silent |= set() if row.drafter == "copyspec" else {"gamma"}
    silent |= set() if row.draft_model else {"draft_model", "delta"}
    silent |= {"num_draft_tokens"} if row.drafter == "none" else set()
    return ", ".join(f"{name}={config[name]}" for name in sorted(config) if name not in silent)


def _line(
    model: str, task: str, drafter: str, conditions: Conditions, found: Sequence[_Row]
) -> Line:
    rows = [one.row for one in found]
    # The newest manifest says when, and its folder's results how good the answers are.
    newest = max(found, key=lambda one: one.row.run_id)
    commands = {one.row.run_id: str(one.manifest.get("command", _UNKNOWN)) for one in found}
    return Line(
        model=model,
        task=task,
        drafter=drafter,
        conditions=conditions,
        date=str(newest.manifest.get("started_at", ""))[:10] or _UNKNOWN,
        commands=tuple(dict.fromkeys(commands[run_id] for run_id in sorted(commands))),
        scores=dict(newest.scores),
        total=table.values(rows),
        by_turn=table.figures(rows)[task],
        rows=rows,
    )


def _label(line: Line, lines: Iterable[Line]) -> str:
    """The drafter, and what sets it apart: from others of its name, and in its requests."""
    same = [other for other in lines if (other.model, other.task) == (line.model, line.task)]
    alike = [other.conditions.settings for other in same if other.drafter == line.drafter]
    own = _not_shared(line.conditions.settings, alike)
    own += _not_shared(line.conditions.generation, [one.conditions.generation for one in same])
    return ", ".join([line.drafter, *own])


def _not_shared(settings: str, others: Sequence[str]) -> list[str]:
    shared = set.intersection(*(set(other.split(", ")) for other in others))
    return [part for part in settings.split(", ") if part and part not in shared]


def _kept_apart(lines: Sequence[Line]) -> Iterator[str]:
    """Which lines differ in their conditions alone, and in which."""
    for index, line in enumerate(lines[1:], start=1):
        other = lines[index - 1]
        if (line.model, line.task, line.drafter) != (other.model, other.task, other.drafter):
            continue
        one, two = asdict(other.conditions), asdict(line.conditions)
        differing = [
            f"{name} ({one[name]} / {two[name]})" for name in one if one[name] != two[name]
        ]
        yield (
            f"{line.model}, {line.task}, {line.drafter}: not put together, "
            f"for they differ in {', '.join(differing)}"
        )
