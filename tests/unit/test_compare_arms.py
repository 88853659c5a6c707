"""`compare RUN`: the answers of a paired run, with drafts and by the baseline."""

from dataclasses import replace

import pytest
from recorded_runs import turn, write_run

from copyspec_eval.cli import main
from copyspec_eval.errors import DataError
from copyspec_eval.records import TurnRecord
from copyspec_eval.reports.runs import read_arms, read_run
from copyspec_eval.types import Difference


def answered(doc: int, drafted: list[int], baseline: list[int]) -> TurnRecord:
    row = turn("r", doc, 1)
    assert row.baseline is not None
    place = next((n for n, (a, b) in enumerate(zip(drafted, baseline, strict=True)) if a != b), -1)
    difference = Difference(place, drafted[place], baseline[place], None, 0.0)
    return replace(
        row,
        token_ids=tuple(drafted),
        counts=replace(row.counts, num_tokens=len(drafted)),
        answer="yes" if place < 0 else "no",
        text="yes",
        baseline=replace(
            row.baseline, token_ids=tuple(baseline), difference=None if place < 0 else difference
        ),
    )


def test_both_arms_are_compared_token_by_token(tmp_path, capsys):
    same = answered(0, [1, 2, 3], [1, 2, 3])
    write_run(tmp_path / "a", [same])
    assert main(["compare", str(tmp_path / "a")]) == 0
    write_run(tmp_path / "b", [same, answered(1, [1, 5, 3], [1, 2, 3])])
    assert main(["compare", str(tmp_path / "b")]) == 1
    [(baseline, drafted)] = read_arms(read_run(tmp_path / "b")).values()
    assert [each.token_ids for each in baseline.answers.values()] == [(1, 2, 3), (1, 2, 3)]
    assert [each.token_ids for each in drafted.answers.values()] == [(1, 2, 3), (1, 5, 3)]
    assert [each.text for each in drafted.answers.values()] == ["yes", "no"]
    printed = capsys.readouterr().out
    assert "diverged" in printed


def test_a_record_of_equality_is_not_believed(tmp_path):
    """What counts are the tokens that both arms have."""
    row = answered(0, [1, 5, 3], [1, 2, 3])
    assert row.baseline is not None
    forged = replace(row, answer="yes", baseline=replace(row.baseline, difference=None))
    write_run(tmp_path, [forged])
    assert main(["compare", str(tmp_path)]) == 1


def test_a_run_without_both_arms_or_tokens_is_refused(tmp_path):
    row = answered(0, [1, 2, 3], [1, 2, 3])
    for name, made, message in (
        ("a", replace(row, baseline=None), "no paired run; give two runs"),
        ("b", replace(row, token_ids=()), "its rows are without tokens"),
        ("c", replace(row, token_ids=None), "its rows are without tokens"),
    ):
        with pytest.raises(DataError, match=message):
            read_arms(read_run(write_run(tmp_path / name, [made])))
