"""Rows survive a kill, pickling and lm-eval's cache; manifests keep every run and no secret."""

from __future__ import annotations

import json
import math
import pickle
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sample_rows import PAIRED_ROW, ROW

from copyspec_eval import provenance, records
from copyspec_eval.errors import DataError, unknown_option
from copyspec_eval.records import RecordedText, record_of
from copyspec_eval.reports import table
from copyspec_eval.reports.summary import (
    METRICS,
    evaluate,
    median_interval,
    median_of_ratios,
    ratio_of_sums,
)


def test_rows_come_back_as_they_were(tmp_path: Path) -> None:
    path = records.records_file(tmp_path / "new" / "folder", rank=1)
    assert path.name == "turns.rank1.jsonl"
    rows = [ROW, replace(ROW, turn=2, attempts=(), spans=()), PAIRED_ROW]
    for row in rows:
        records.append(path, row)
    assert list(records.read(path)) == rows
    assert len(path.read_text().split("\n")) == 4


def test_a_line_cut_off_by_a_kill_is_left_out_and_a_broken_one_is_named(tmp_path: Path) -> None:
    path = tmp_path / "turns.jsonl"
    records.append(path, ROW)
    whole = path.read_text()
    path.write_text(whole + whole[:50])
    assert list(records.read(path)) == [ROW]
    path.write_text(whole + "{}\n" + whole)
    with pytest.raises(DataError, match=r"turns.jsonl:2: not a turn record"):
        list(records.read(path))
    path.write_text(whole.replace('"schema_version":4', '"schema_version":1'))
    with pytest.raises(DataError, match=r"turns.jsonl:1: .*schema_version 1, this is 4"):
        list(records.read(path))


def test_an_answer_is_text_with_its_record() -> None:
    answer = RecordedText("hello", ROW)
    assert answer == "hello"
    again = pickle.loads(pickle.dumps(answer))
    assert again == "hello"
    assert record_of(again) == ROW
    assert record_of("hello") is None
    assert json.dumps([answer]) == '["hello"]'
    assert type(answer)(5) == "5", "lm-eval turns a reference answer into the answer's type"


def test_every_metric_by_hand() -> None:
    other = replace(ROW, num_tokens=30, num_forwards=30, num_attempts=0, num_accepted=0)
    other = replace(
        other, num_drafted=0, num_copied=0, seconds=15.0, prefill_seconds=0.0, decode_seconds=15.0
    )
    values = {metric.name: evaluate(metric, [ROW, other]) for metric in METRICS}
    paired = {name for name, value in values.items() if math.isnan(value)}
    assert paired == {
        *("baseline_tokens_per_second", "speedup", "identical", "near_tie", "diverged"),
        *("speedup_median", "speedup_median_low", "speedup_median_high"),
    }
    values = {name: value for name, value in values.items() if name not in paired}
    assert values == pytest.approx(
        {
            "tokens_per_second": 40 / 20,
            "decode_tokens_per_second": 38 / 19,
            "latency_seconds": 5.0,
            "tokens": 20,
            "forwards": 17.5,
            "tokens_per_forward": 40 / 35,
            "copied_share": 5 / 40,
            "drafted_per_token": 20 / 40,
            "accepted_per_attempt": 2.5,
        }
    )
    assert table.values([other])["accepted_per_attempt"] is None
    assert math.isnan(ratio_of_sums([(1, 0), (2, 0)]))


def test_every_metric_of_pairs_by_hand() -> None:
    assert PAIRED_ROW.baseline is not None
    slower = replace(PAIRED_ROW.baseline, num_tokens=12, seconds=6.0, agreement="identical")
    rows = [PAIRED_ROW, replace(PAIRED_ROW, baseline=slower), ROW]
    values = table.values(rows)
    assert values["baseline_tokens_per_second"] == pytest.approx(22 / 16)
    assert values["speedup"] == pytest.approx((20 / 10) / (22 / 16)), "of the paired turns only"
    assert values["speedup_median"] == pytest.approx((2 / 1 + 2 / 2) / 2)
    assert (values["speedup_median_low"], values["speedup_median_high"]) == (1.0, 2.0)
    assert (values["identical"], values["near_tie"], values["diverged"]) == (0.5, 0.5, 0.0)
    assert table.values([PAIRED_ROW])["speedup_median_low"] is None, "one turn has no interval"


def test_what_a_backend_does_not_tell_has_no_figure() -> None:
    mute = replace(ROW, num_tokens=None, num_forwards=None, num_accepted=None, decode_seconds=None)
    values = table.values([mute])
    assert values["tokens_per_second"] is values["tokens"] is values["copied_share"] is None
    assert values["latency_seconds"] == 5.0
    assert table.values([mute, ROW])["tokens_per_second"] == 2.0


@given(st.lists(st.floats(0.1, 10), min_size=2, max_size=30), st.floats(0.5, 2))
def test_the_interval_holds_the_median_and_scales_with_it(ratios: list[float], by: float) -> None:
    parts = [(ratio, 1.0, 1.0, 1.0) for ratio in ratios]
    low, high = median_interval(parts)
    more = 1 + 1e-9  # for rounding
    assert min(ratios) <= low * more
    assert low <= median_of_ratios(parts) * more
    assert median_of_ratios(parts) <= high * more
    assert high <= max(ratios) * more
    assert (low, high) == median_interval(parts), "the same each time"
    scaled = median_interval([(ratio * by, *rest) for ratio, *rest in parts])
    assert scaled == pytest.approx((low * by, high * by))


def test_table_has_a_line_per_turn_and_category() -> None:
    rows = [ROW, replace(ROW, category="writing"), replace(ROW, turn=2)]
    lines = table.render(rows).splitlines()
    assert len(lines) == 2 + 3 + 1, "turn 1 with two categories, turn 2 with one"
    assert "5" in lines[2]
    assert table.figures(rows)["mt_bench"]["turn 2"]["turns"] == 1


def test_manifest_keeps_earlier_runs_and_no_secret(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    command = ["/usr/bin/lm_eval", "--model_args", "pretrained=M,token=hf_abc,gamma=3", "api_key=k"]
    monkeypatch.setattr(sys, "argv", command)
    first = provenance.manifest({"gamma": 3})
    assert first.command == "lm_eval --model_args pretrained=M,token=***,gamma=3 api_key=***"
    assert first.hardware["memory_bytes"] > 0
    second = replace(first, run_id="another")
    for run in (first, second, first):
        provenance.write_manifest(tmp_path, run)
    runs = json.loads((tmp_path / "manifest.json").read_text())["runs"]
    assert [run["run_id"] for run in runs] == ["another", first.run_id]
    assert [path.name for path in tmp_path.iterdir()] == ["manifest.json"]


def test_a_file_that_only_has_the_manifests_name_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "manifest.json").write_text("[]")
    with pytest.raises(DataError, match=r"manifest.json: not a manifest of ours"):
        provenance.write_manifest(tmp_path, provenance.manifest({}))
    assert (tmp_path / "manifest.json").read_text() == "[]"


def test_run_id_is_one_per_process() -> None:
    assert provenance.run_id() == provenance.run_id()
    program = "from copyspec_eval.provenance import run_id; print(run_id())"
    other = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert other.stdout.strip() != provenance.run_id()


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
