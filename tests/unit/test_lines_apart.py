"""Settings that set a leaderboard's lines apart, and documents that do not."""

from dataclasses import fields
from typing import Any

import pytest
from recorded_runs import board, manifest, turns, write_run
from sample_rows import SPEC

from copyspec_eval.manifest import RunManifest, RunSpec


def asked(run_id: str, **documents: list[int]) -> RunManifest:
    """The manifest of a run with `--samples`."""
    return manifest(run_id, evaluation=SPEC.evaluation | {"samples": documents})


def test_documents_of_other_tasks_set_no_line_apart(tmp_path):
    more = write_run(tmp_path / "a", turns("a"), asked("a", mt_bench=[0, 1, 2, 3], other=[5]))
    alone = write_run(tmp_path / "b", turns("b"), asked("b", mt_bench=[0, 1, 2, 3]))
    actual = board(more, alone)
    assert actual.lines["runs"].tolist() == [2]
    assert not actual.notes


def test_other_documents_set_a_line_apart_in_brief(tmp_path):
    every = write_run(tmp_path / "a", turns("a", 8), manifest("a"))
    some = write_run(tmp_path / "b", turns("b", 8), asked("b", mt_bench=[*range(8)]))
    actual = board(every, some)
    assert sorted(actual.lines["drafter"]) == ["copyspec", "copyspec, samples=8, 0 to 7"]
    assert "they differ in task.samples (unset / 8, 0 to 7)" in " ".join(actual.notes) or (
        "they differ in task.samples (8, 0 to 7 / unset)" in " ".join(actual.notes)
    )


def changed(value: Any) -> Any:
    """Another value of the same kind."""
    if isinstance(value, dict):
        # Of the tasks, those of the task that was answered.
        inner: dict[str, Any] = {
            name: {"version": 2} for name in value if isinstance(value[name], dict)
        }
        return value | (inner or {"a new setting": "1"})
    if isinstance(value, int):
        return value + 1
    return "another" if isinstance(value, str) else {"other": 1}


@pytest.mark.parametrize("field", [field.name for field in fields(RunSpec)])
def test_runs_that_differ_in_one_setting_are_never_one_line(tmp_path, field):
    change = {field: changed(getattr(SPEC, field))}
    one = write_run(tmp_path / "one", turns("a"), manifest("a"))
    two = write_run(tmp_path / "two", turns("b"), manifest("b", **change))
    actual = board(one, two)
    assert len(actual.lines) == 2
    assert actual.lines["runs"].to_list() == [1, 1]
    if field != "model":
        [note] = actual.notes
        start = "M, mt_bench, copyspec: kept separate: they differ in "
        assert note.startswith(start + {"tasks": "task.version"}.get(field, field))


@pytest.mark.parametrize(
    ("field", "name"), [(f, n) for f in ("model_args", "drafting", "evaluation", "hardware")
                        for n in getattr(SPEC, f)]
)  # fmt: skip
def test_each_setting_within_a_field_counts(tmp_path, field, name):
    values = getattr(SPEC, field)
    value = False if values[name] is True else changed(values[name])
    one = write_run(tmp_path / "one", turns("a"), manifest("a"))
    two = write_run(tmp_path / "two", turns("b"), manifest("b", **{field: values | {name: value}}))
    actual = board(one, two)
    assert len(actual.lines) == 2
    assert f"{field}.{name}" in actual.notes[0]
