"""Rows that are shared: figures of all documents, texts of ours alone."""

import json
from dataclasses import replace

import pytest
from benchmarks.sharing import share_rows
from sample_rows import PAIRED_ROW, ROW

from copyspec_eval import records
from copyspec_eval.errors import DataError
from copyspec_eval.reports import turns
from copyspec_eval.reports.summary import summarise

SECRET = "words of others"
THEIRS = replace(PAIRED_ROW, task="mt_bench", prompt=SECRET, text=f"a {SECRET}", answer=SECRET)
OURS = replace(ROW, task="quickstart_extractive", prompt="words of ours")


def test_figures_stay_and_texts_of_others_go(tmp_path):
    path = tmp_path / "turns.jsonl"
    for row in (THEIRS, OURS):
        records.append(path, row)
    before = records.read(path, [])
    share_rows(path)
    shared = path.read_bytes()
    assert SECRET not in shared.decode()
    after = records.read(path, [])
    assert after[1] == before[1]
    assert after[0].prompt_sha256 == THEIRS.prompt_sha256
    assert summarise(turns.frame(after)) == summarise(turns.frame(before))
    row = json.loads(shared.splitlines()[0])
    assert (row["token_ids"], row["baseline"]["token_ids"]) == (None, [])
    share_rows(path)
    assert path.read_bytes() == shared, "a second time changes nothing"
    # A row that cannot be read is not dropped.
    path.write_bytes(torn := shared + b'{"run_id": "x')
    with pytest.raises(DataError, match="unreadable rows"):
        share_rows(path)
    assert path.read_bytes() == torn
