"""What reports say of runs that copied from earlier ones, and beside which they stand."""

from dataclasses import replace
from pathlib import Path
from typing import Any

from recorded_runs import manifest, turn, write_run
from sample_rows import SPEC, with_counts

from copyspec_eval.cli import main
from copyspec_eval.records import TurnRecord
from copyspec_eval.reports.leaderboard import Leaderboard, leaderboard
from copyspec_eval.reports.leaderboard_forms import FORMS, overview
from copyspec_eval.reports.recorded import read_recorded
from copyspec_eval.types import DraftCounts


def board(*folders: Path) -> Leaderboard:
    return leaderboard([read_recorded(folder) for folder in folders])


def turns(run_id: str, **changes: Any) -> list[TurnRecord]:
    return [turn(run_id, doc, number, **changes) for doc in range(4) for number in (1, 2)]


def seeded(run_id: str, **changes: Any) -> list[TurnRecord]:
    """Turns that copied 4 of their 10 tokens from an earlier run."""
    drafts = {"earlier": DraftCounts(2, 9, 4)}
    return [with_counts(row, drafts=drafts) for row in turns(run_id, **changes)]


def test_a_run_with_earlier_answers_is_never_beside_one_without_as_if_equal(tmp_path):
    label = "suffix + store=base"
    store = {"store": "runs/base", "store_sha256": "0123456789ab"}
    folders = [
        write_run(tmp_path / "a", turns("a", drafter="suffix"), manifest("a")),
        write_run(
            tmp_path / "b",
            seeded("b", drafter=label),
            manifest("b", drafting=SPEC.drafting | store),
        ),
    ]
    actual = board(*folders)
    assert actual.lines["drafter"].to_list() == ["suffix", label]
    assert actual.lines["runs"].to_list() == [1, 1]
    assert actual.notes == [
        f"M, mt_bench, {label}: 40% of its tokens were copied from answers of earlier runs; "
        "a line without them is no measure of it"
    ]
    for form, text in FORMS.items():
        assert label in text(actual), form
    assert "from earlier runs" in FORMS["md"](actual)
    assert "from earlier runs" in overview(actual)
    assert label in overview(actual)
    alone = board(folders[0])
    assert "earlier runs" not in FORMS["md"](alone) + overview(alone)


def test_a_lost_manifest_does_not_put_it_beside_one_without(tmp_path):
    one = write_run(tmp_path / "a", turns("a", drafter="suffix"))
    two = write_run(tmp_path / "b", seeded("b", drafter="suffix + store=base"))
    actual = board(one, two)
    assert actual.lines["drafter"].to_list() == ["suffix", "suffix + store=base"]


def test_earlier_answers_that_differ_are_lines_of_their_own(tmp_path):
    """Of folders of one name, as when a run was repeated in its place."""
    folders = []
    for run_id, digest in (("a", "0123456789ab"), ("b", "0123456789ab"), ("c", "ba9876543210")):
        drafting = SPEC.drafting | {"store": "runs/base", "store_sha256": digest}
        rows = seeded(run_id, drafter="suffix + store=base")
        folders.append(write_run(tmp_path / run_id, rows, manifest(run_id, drafting=drafting)))
    actual = board(*folders)
    assert actual.lines["runs"].to_list() == [2, 1]
    assert actual.lines["drafter"].to_list() == [
        "suffix + store=base, store_sha256=0123456789ab",
        "suffix + store=base, store_sha256=ba9876543210",
    ]
    assert "they differ in drafting.store_sha256 (0123456789ab / ba9876543210)" in actual.notes[0]


def test_no_table_names_the_place_of_earlier_runs(tmp_path):
    drafting = SPEC.drafting | {"store": "/home/me/a:/home/me/b", "store_sha256": "0"}
    run = manifest("a", drafting=drafting)
    run = replace(run, command="lm_eval --model_args store=/home/me/a:/home/me/b")
    folder = write_run(tmp_path / "a", seeded("a", drafter="suffix + store=a:b"), run)
    assert main(["report", str(folder), "--out", str(tmp_path / "out")]) == 0
    for path in (tmp_path / "out").iterdir():
        assert "/home/me" not in path.read_text(), path.name
    assert "store=a:b" in (tmp_path / "out" / "LEADERBOARD.md").read_text()
