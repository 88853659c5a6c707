"""Rows survive a kill, pickling and lm-eval's cache."""

import json
import pickle
import re
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sample_rows import PAIRED_ROW, ROW

from copyspec_eval import records
from copyspec_eval.errors import DataError, unknown_option
from copyspec_eval.records import RecordedText, SpanCharacters, record_of
from copyspec_eval.types import Attempt, DraftCounts, TurnCounts


def rows_in(path):
    """Its rows and the notes on it."""
    notes: list[str] = []
    return records.read(path, notes), notes


def write(path, *rows):
    """Its lines."""
    for row in rows:
        records.append(path, row)
    return path.read_text().split("\n")[:-1]


def test_rows_come_back_as_they_were(tmp_path):
    path = records.records_file(tmp_path / "new" / "folder", rank=1)
    assert path.name == "turns.rank1.jsonl"
    rows = [ROW, replace(ROW, turn=2, attempts=(), spans=()), PAIRED_ROW]
    rows += [replace(ROW, counts=TurnCounts(), token_ids=None, drafter=None)]
    rows += [replace(ROW, span_characters=(SpanCharacters(0, 1, -1, -1),))]
    assert len(write(path, *rows)) == len(rows)
    assert rows_in(path) == (rows, [])


drafted, accepted = st.integers(9, 99), st.integers(0, 9)
sources = st.sampled_from(("context", "store", "earlier", "model"))
counts = st.builds(
    TurnCounts,
    num_tokens=st.none() | st.integers(0, 10**9),
    drafts=st.dictionaries(sources, st.builds(DraftCounts, accepted, drafted, accepted)),
    seconds=st.none() | st.floats(0, 1e9),
)


@given(counts, st.text(), st.lists(st.builds(Attempt, drafted, accepted), max_size=3))
def test_any_row_comes_back(tmp_path_factory, counts, text, attempts):
    path = tmp_path_factory.mktemp("run") / "turns.jsonl"
    row = replace(ROW, counts=counts, text=text, attempts=tuple(attempts))
    write(path, row)
    assert rows_in(path) == ([row], [])


def test_lines_that_are_no_rows_are_left_out_and_named(tmp_path):
    path = tmp_path / "turns.jsonl"
    lines = write(path, *[ROW] * 5)
    lines[1] = lines[1].replace('"schema_version":5', '"schema_version":4')
    lines[2] = "{}"
    lines[4] = lines[4][:60]
    path.write_text("\n".join(lines))
    note = f"{path}: unreadable rows left out: 3, on line 2, 3, 5 (schema 4, not 5)"
    assert rows_in(path) == ([ROW, ROW], [note])


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('"num_tokens":10', '"num_tokens":1.5'),
        ('"finish_reason":"eos"', '"finish_reason":"bored"'),
        ('"seconds":5.0', '"seconds":Infinity'),
        ('"num_tokens":10', '"num_tokens":-1'),
        ('"seconds":5.0', '"seconds":-0.5'),
        ('"seconds":5.0', '"seconds":1e308'),
        ('"num_forwards":5', '"num_forwards":1000000000000'),
        ('"num_accepted":5', '"num_accepted":21'),
        ('[10,3,"context"]', '[10000000,0,"context"]'),
        ('[10,3,"context"]', '[2,3,"context"]'),
        ('[10,3,"context"]', '[2,-1,"context"]'),
    ],
)
def test_values_that_no_run_has_are_left_out_and_named(tmp_path, old, new):
    path = tmp_path / "turns.jsonl"
    first, second = write(path, ROW, ROW)
    assert old in second
    path.write_text(f"{first}\n{second.replace(old, new, 1)}\n")
    rows, [note] = rows_in(path)
    assert rows == [ROW]
    reason = r"\w+ is -?[\d.e+]+\)|-?\d+ of \d+ accepted|Expected|Invalid|JSON is malformed"
    assert re.search(rf"unreadable rows left out: 1, on line 2 \(({reason})", note)


def test_a_folder_in_place_of_the_file_is_an_error(tmp_path):
    with pytest.raises(DataError, match="cannot be read"):
        records.read(tmp_path, [])


def test_an_answer_is_text_with_its_record():
    answer = RecordedText("hello", ROW)
    again = pickle.loads(pickle.dumps(answer))
    assert answer == again == "hello"
    assert (record_of(again), record_of("hello")) == (ROW, None)
    assert json.dumps([answer]) == '["hello"]'
    assert type(answer)(5) == "5", "lm-eval turns a reference answer into the answer's type"


def test_unknown_names_without_a_close_one_list_them_all():
    assert str(unknown_option("thing", "xyz", ["b", "a"])) == "unknown thing 'xyz'; known: a, b"
