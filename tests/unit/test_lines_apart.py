"""Settings that set a leaderboard's lines apart: all, answers of earlier runs among them."""

from dataclasses import fields
from typing import Any

import pytest
from recorded_runs import board, recorded_run, turns
from sample_rows import SPEC, with_counts

from copyspec_eval.manifest import RunSpec
from copyspec_eval.reports.leaderboard_forms import FORMS, overview
from copyspec_eval.types import DraftCounts


def test_other_documents_set_a_line_apart_in_brief(tmp_path):
    asked = SPEC.evaluation | {"samples": {"mt_bench": [*range(8)]}}
    every = recorded_run(tmp_path / "a", "a", turns("a", 8))
    some = recorded_run(tmp_path / "b", "b", turns("b", 8), evaluation=asked)
    actual = board(every, some)
    assert sorted(actual.lines["drafter"]) == ["copyspec", "copyspec, samples=8, 0 to 7"]
    notes, both = " ".join(actual.notes), ("unset", "8, 0 to 7")
    ways = [f"they differ in task.samples ({' / '.join(way)})" for way in (both, both[::-1])]
    assert any(way in notes for way in ways)


def changed(value):
    """Another value of the same kind."""
    if isinstance(value, dict):
        # Among the tasks, those of the task that was answered.
        inner: Any = {name: {"version": 2} for name in value if isinstance(value[name], dict)}
        return value | (inner or {"a new setting": "1"})
    if isinstance(value, bool):
        return not value
    if isinstance(value, int):
        return value + 1
    return "another" if isinstance(value, str) else {"other": 1}


DICTIONARIES = ("model_args", "drafting", "evaluation", "hardware")


@pytest.mark.parametrize(
    ("field", "name"),
    [
        *((field.name, "") for field in fields(RunSpec)),
        *((field, name) for field in DICTIONARIES for name in getattr(SPEC, field)),
    ],
)
def test_runs_that_differ_in_one_setting_are_never_one_line(tmp_path, field, name):
    before = getattr(SPEC, field)
    value = before | {name: changed(before[name])} if name else changed(before)
    rows = [turns(run_id, docs=1, baseline=None) for run_id in "ab"]
    one = recorded_run(tmp_path / "one", "a", rows[0])
    actual = board(one, recorded_run(tmp_path / "two", "b", rows[1], **{field: value}))
    assert actual.lines["runs"].to_list() == [1, 1]
    if field != "model":
        start = "M, mt_bench, copyspec: kept separate: they differ in "
        setting = "task.version" if field == "tasks" else f"{field}.{name}".rstrip(".")
        assert actual.notes[0].startswith(start + setting)


LABEL = "suffix + store=base"


def seeded(run_id):
    """Turns that copied 4 of their 10 tokens from an earlier run."""
    drafts = {"earlier": DraftCounts(2, 9, 4)}
    return [with_counts(row, drafts=drafts) for row in turns(run_id, drafter=LABEL)]


def stored(digest):
    return SPEC.drafting | {"store": "runs/base", "store_sha256": digest}


def test_a_run_with_earlier_answers_is_never_put_with_one_without(tmp_path):
    without = recorded_run(tmp_path / "a", "a", turns("a", drafter="suffix"))
    seeded_run = recorded_run(tmp_path / "b", "b", seeded("b"), drafting=stored("0123"))
    actual = board(without, seeded_run)
    assert actual.lines["drafter"].to_list() == ["suffix", LABEL]
    assert actual.lines["runs"].to_list() == [1, 1]
    assert actual.notes == [
        "tokens were copied from answers of earlier runs; that is no measure of a drafter: "
        f"M, mt_bench, {LABEL} (40%)"
    ]
    assert all(LABEL in text(actual) for text in (*FORMS.values(), overview))
    for text in (FORMS["md"], overview):
        assert "from earlier runs" in text(actual)
        assert "earlier runs" not in text(board(without))


def test_earlier_answers_that_differ_are_lines_of_their_own(tmp_path):
    """In folders of one name, as when a run was repeated in its place."""
    folders = [
        recorded_run(tmp_path / run_id, run_id, seeded(run_id), drafting=stored(digest))
        for run_id, digest in (("a", "0123"), ("b", "0123"), ("c", "ba98"))
    ]
    actual = board(*folders)
    assert actual.lines["runs"].to_list() == [2, 1]
    labels = [f"{LABEL}, store_sha256={digest}" for digest in ("0123", "ba98")]
    assert actual.lines["drafter"].to_list() == labels
    assert "they differ in drafting.store_sha256 (0123 / ba98)" in actual.notes[0]
