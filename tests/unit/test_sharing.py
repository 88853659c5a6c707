"""Rows that are shared: figures of all documents, texts of ours alone."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from benchmarks.sharing import share_rows, tokens_sha256
from sample_rows import PAIRED_ROW, ROW

from copyspec_eval import records
from copyspec_eval.errors import DataError
from copyspec_eval.reports import turns
from copyspec_eval.reports.summary import summarise

SECRET = "words of others"
assert PAIRED_ROW.baseline
BASELINE = PAIRED_ROW.baseline
THEIRS = replace(
    PAIRED_ROW, task="mt_bench", prompt=SECRET, text=f"as {SECRET} say", answer=f"as {SECRET} say"
)
OURS = replace(ROW, task="quickstart_extractive", prompt="words of ours")


def written(path: Path, *rows: records.TurnRecord) -> Path:
    for row in rows:
        records.append(path, row)
    return path


def test_figures_stay_and_texts_of_others_go(tmp_path):
    path = written(tmp_path / "turns.jsonl", THEIRS, OURS)
    before = records.read(path, [])
    share_rows(path)
    shared = path.read_bytes()
    assert SECRET not in shared.decode()
    after = records.read(path, [])
    assert after[1] == before[1]
    assert after[0].prompt_sha256 == THEIRS.prompt_sha256
    assert summarise(turns.frame(after)) == summarise(turns.frame(before))
    for row in map(json.loads, shared.splitlines()[:1]):
        assert row["token_ids"] is None
        assert row["baseline"]["token_ids"] == []
        assert row["tokens_sha256"] == tokens_sha256(THEIRS.token_ids or ())
        assert row["baseline"]["tokens_sha256"] == tokens_sha256(BASELINE.token_ids)
    share_rows(path)
    assert path.read_bytes() == shared, "a second time changes nothing"


def test_a_row_that_cannot_be_read_is_not_dropped(tmp_path):
    path = written(tmp_path / "turns.jsonl", THEIRS)
    torn = path.read_bytes() + b'{"run_id": "x'
    path.write_bytes(torn)
    with pytest.raises(DataError, match="unreadable rows"):
        share_rows(path)
    assert path.read_bytes() == torn
