"""Rows survive a kill, pickling and lm-eval's cache."""

import json
import pickle
import re
import subprocess
import sys
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sample_rows import COUNTS, PAIRED_ROW, ROW

from copyspec_eval import records
from copyspec_eval.errors import DataError, unknown_option
from copyspec_eval.records import RecordedText, SpanCharacters, TurnRecord, record_of
from copyspec_eval.types import Attempt, DraftCounts, Span, TurnCounts


def test_rows_come_back_as_they_were(tmp_path: Path) -> None:
    path = records.records_file(tmp_path / "new" / "folder", rank=1)
    assert path.name == "turns.rank1.jsonl"
    rows = [ROW, replace(ROW, turn=2, attempts=(), spans=()), PAIRED_ROW]
    rows += [replace(ROW, counts=TurnCounts(), token_ids=None, drafter=None)]
    rows += [replace(ROW, span_characters=(SpanCharacters(0, 1, -1, -1),))]
    for row in rows:
        records.append(path, row)
    notes: list[str] = []
    assert records.read(path, notes) == rows
    assert notes == []
    assert len(path.read_text().split("\n")) == len(rows) + 1


numbers = st.none() | st.integers(0, 10**9)
accepted = st.integers(0, 9)
drafted = st.integers(9, 99)
seconds = st.none() | st.floats(0, 1e9)
counts = st.builds(
    TurnCounts,
    num_tokens=numbers,
    num_forwards=numbers,
    drafts=st.none()
    | st.dictionaries(
        st.sampled_from(("context", "store", "earlier", "recycled", "model")),
        st.builds(DraftCounts, st.integers(0, 9), drafted, accepted),
    ),
    seconds=seconds,
    latency_seconds=seconds,
    finish_reason=st.sampled_from((None, "eos", "stop", "length")),
)


@given(
    counts,
    st.text(),
    st.lists(st.builds(Attempt, drafted, accepted), max_size=3),
    st.lists(st.builds(Span, st.integers(0, 9), st.integers(1, 9), st.integers(-1, 9)), max_size=3),
)
def test_any_row_comes_back(
    tmp_path_factory: pytest.TempPathFactory,
    of_turn: TurnCounts,
    text: str,
    attempts: list[Attempt],
    spans: list[Span],
) -> None:
    path = tmp_path_factory.mktemp("run") / "turns.jsonl"
    row = replace(ROW, counts=of_turn, text=text, attempts=tuple(attempts), spans=tuple(spans))
    records.append(path, row)
    assert records.read(path, []) == [row]


def test_lines_that_are_no_rows_are_left_out_and_named(tmp_path: Path) -> None:
    path = tmp_path / "turns.jsonl"
    for _ in range(5):
        records.append(path, ROW)
    lines = path.read_text().split("\n")[:-1]
    lines[1] = "{}"
    lines[2] = lines[2].replace('"schema_version":5', '"schema_version":4')
    lines[4] = lines[4][:60]
    path.write_text("\n".join(lines))
    notes: list[str] = []
    assert records.read(path, notes) == [ROW, ROW]
    [note] = notes
    assert note.startswith(f"{path}: unreadable rows left out: 3, on line 2, 3, 5 (")
    assert "missing required field" in note


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('"num_tokens":10', '"num_tokens":"10"'),
        ('"num_tokens":10', '"num_tokens":1.5'),
        ('"finish_reason":"eos"', '"finish_reason":"bored"'),
        ('"context":{', '"elsewhere":{'),
        ('"seconds":5.0', '"seconds":Infinity'),
        ('[10,3,"context"]', "[10]"),
    ],
)
def test_values_of_other_types_are_no_row(tmp_path: Path, old: str, new: str) -> None:
    path = tmp_path / "turns.jsonl"
    records.append(path, ROW)
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new, 1))
    notes: list[str] = []
    assert records.read(path, notes) == []
    assert len(notes) == 1


def test_a_row_of_the_schema_before_is_named_with_both_numbers(tmp_path: Path) -> None:
    path = tmp_path / "turns.jsonl"
    records.append(path, replace(ROW, schema_version=4))
    notes: list[str] = []
    assert records.read(path, notes) == []
    assert notes[0].endswith("1, on line 1 (schema 4, not 5)")


def test_a_folder_in_place_of_the_file_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="cannot be read"):
        records.read(tmp_path, [])


def test_counts_are_declared_once() -> None:
    """Of generations, records, baselines: nothing but `counts` has a count or a time."""
    named = {field.name for field in fields(TurnCounts)}
    assert not named & {field.name for field in fields(TurnRecord)}
    row: dict[str, Any] = json.loads(msgspec.json.encode(PAIRED_ROW))
    assert row["counts"].keys() == row["baseline"]["counts"].keys() == named
    assert COUNTS.drafts is not None


def test_an_answer_is_text_with_its_record() -> None:
    answer = RecordedText("hello", ROW)
    assert answer == "hello"
    again = pickle.loads(pickle.dumps(answer))
    assert again == "hello"
    assert record_of(again) == ROW
    assert record_of("hello") is None
    assert json.dumps([answer]) == '["hello"]'
    assert type(answer)(5) == "5", "lm-eval turns a reference answer into the answer's type"


def test_only_errors_of_ours_are_shortened() -> None:
    program = (
        "from copyspec_eval.errors import *\n"
        "report_errors_in_one_line(); report_errors_in_one_line()\n"
        "raise {}('what')"
    )
    for kind, lines in (("OptionError", ["copyspec-eval: error: what"]), ("OSError", None)):
        result = subprocess.run(
            [sys.executable, "-c", program.format(kind)], capture_output=True, text=True
        )
        assert result.returncode == 1
        if lines:
            assert result.stderr.splitlines() == lines
        else:
            assert result.stderr.startswith("Traceback")


def test_unknown_names_without_a_close_one_list_them_all() -> None:
    assert str(unknown_option("thing", "xyz", ["b", "a"])) == "unknown thing 'xyz'; known: a, b"


@pytest.mark.parametrize(
    "wrong",
    [
        {"counts": TurnCounts(num_tokens=-1)},
        {"counts": TurnCounts(seconds=-0.5)},
        {"counts": TurnCounts(seconds=1e308)},
        {"counts": TurnCounts(num_forwards=10**12)},
        {"counts": TurnCounts(drafts={"store": DraftCounts(1, 2, 3)})},
        {"attempts": (Attempt(10**7, 0),)},
        {"attempts": (Attempt(2, 3),)},
        {"attempts": (Attempt(2, -1),)},
    ],
    ids=str,
)
def test_numbers_that_no_run_has_are_left_out_and_named(
    wrong: dict[str, Any], tmp_path: Path
) -> None:
    path = tmp_path / "turns.jsonl"
    for row in (ROW, replace(ROW, **wrong)):
        records.append(path, row)
    notes: list[str] = []
    assert records.read(path, notes) == [ROW]
    assert re.search(r"unreadable rows left out: 1, on line 2 \(.+( is | accepted)", notes[0])
