"""Scripts from end to end: that which times decoders, and that which trains the embedded model."""

import io
import json
import runpy
import subprocess
import sys
import time
from argparse import Namespace
from functools import partial
from pathlib import Path

import psutil
import pytest
from tiny.tokenizer import train_tokenizer

from copyspec_eval.paths import TINY, model_path

SCRIPTS = Path(__file__).parents[2] / "scripts"


@pytest.fixture
def script(monkeypatch, capsys):
    """Run one; its last line, which is JSON."""

    def run(name, *arguments):
        monkeypatch.setattr(sys, "argv", [name, *arguments])
        runpy.run_path(str(SCRIPTS / name), run_name="__main__")
        return json.loads(capsys.readouterr().out.splitlines()[-1])

    return run


@pytest.fixture
def conversations(script, byte_model, our_questions):
    short = ("--tokens", "6", "--limit", "2")
    return partial(script, "conversations", "--model", str(byte_model), *short)


@pytest.mark.parametrize(
    "decoder",
    [
        "copyspec exact=false",
        "hf prompt_lookup_num_tokens=3 --dtype float32",
        pytest.param("hf cache_implementation=static", marks=pytest.mark.slow),
    ],
)
def test_both_turns_have_a_rate(conversations, decoder):
    result = conversations(*decoder.split())
    assert [rate > 0 for rate in result["tokens_per_second"]] == [True, True]
    assert result["version"] != "unknown"


@pytest.mark.parametrize(
    ("data", "arguments", "message"),
    [
        (None, ("--batch-size", "2"), "hf answers one conversation at a time; pass --batch-size 1"),
        ("/nowhere", (), "there is no .*; set COPYSPEC_DATA_DIR to a folder that has it"),
        (None, ("--limit", "99"), "--limit 99 must be from 1 to 6 conversations"),
    ],
)
def test_what_there_is_not_is_refused(conversations, monkeypatch, data, arguments, message):
    if data:
        monkeypatch.setenv("COPYSPEC_DATA_DIR", data)
    with pytest.raises(SystemExit, match=rf"\A{message}\Z"):
        conversations("hf", *arguments)


def test_a_paced_decoder_took_as_long_as_it_is_told(conversations, monkeypatch):
    monkeypatch.setattr(sys, "stdin", io.StringIO("\n2.0\n" * 5))
    result = conversations("hf", "--paced")
    assert result["long_prompt_seconds"] == 2
    assert result["tokens_per_second"] == [count / 2 for count in result["tokens"]]


@pytest.mark.parametrize("lines", ["\n", "\n2.0\n"])
def test_a_paced_decoder_ends_with_what_paces_it(conversations, monkeypatch, lines):
    monkeypatch.setattr(sys, "stdin", io.StringIO(lines))
    with pytest.raises(SystemExit, match="standard input has ended"):
        conversations("hf", "--paced")


@pytest.mark.slow
def test_decoders_take_turns_and_are_not_run_again(
    byte_model, our_questions, monkeypatch, capsys, tmp_path
):
    where = ("--model", str(byte_model), "--out", str(tmp_path))
    size = ("--limit", "2", "--batch-sizes", "1", "--passes", "2")
    monkeypatch.setattr(sys, "argv", ["decoders", *where, *size])
    for _ in range(2):
        runpy.run_path(str(SCRIPTS / "decoders"), run_name="__main__")
        rows = [json.loads(line) for line in (tmp_path / "runs.jsonl").read_text().splitlines()]
        assert [row["decoder"] for row in rows] == ["copyspec"] * 4 + ["hf"] * 3 + ["copyspec"]
        assert all(rate > 0 for row in rows for rate in row["tokens_per_second"])
        ours = {row["answers_sha256"] for row in rows if row["decoder"] == "copyspec"}
        assert len(ours) == 1
    assert "ours, `none`" in capsys.readouterr().out


@pytest.mark.slow
def test_a_decoder_that_fails_ends_the_others(byte_model, our_questions, monkeypatch, tmp_path):
    where = ("--model", str(byte_model), "--out", str(tmp_path))
    monkeypatch.setattr(sys, "argv", ["decoders", *where, "--limit", "99"])
    with pytest.raises(SystemExit, match=r"error: .*--limit 99 must be from 1 to 6 conv[a-z]*\Z"):
        runpy.run_path(str(SCRIPTS / "decoders"), run_name="__main__")
    assert not (tmp_path / "runs.jsonl").exists()


@pytest.mark.slow
def test_decoders_end_with_what_loads_and_stops_them(byte_model, our_questions, tmp_path):
    where = ("--model", str(byte_model), "--out", str(tmp_path), "--limit", "2")
    command = [sys.executable, str(SCRIPTS / "decoders"), *where]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        for _ in range(2):  # until the first is loaded and stopped
            process.stderr.readline()
        # One that is just being forked is not yet known, and ends by itself once it has loaded.
        time.sleep(2)
        decoders = psutil.Process(process.pid).children()
        is_stopped = [each.status() == psutil.STATUS_STOPPED for each in decoders]
        assert is_stopped == [True, False], "the second is loading"
        process.terminate()
        code = process.wait(20)
    assert not any(each.is_running() for each in decoders)
    assert code == 1


@pytest.mark.parametrize(
    "name", ["model", "dtype", "conversations", "threads", "hardware", "versions"]
)
def test_runs_of_another_comparison_are_not_continued(monkeypatch, tmp_path, name):
    monkeypatch.setattr(sys, "argv", ["decoders"])
    continued = runpy.run_path(str(SCRIPTS / "decoders"))["continued"]
    arguments = Namespace(model=Path("M"), dtype="float32", limit=2, out=tmp_path)
    assert continued(arguments) == continued(arguments)
    written = json.loads((tmp_path / "decoders.json").read_text())
    place = written if name in written else written["manifest"]
    place[name] = "another"
    (tmp_path / "decoders.json").write_text(json.dumps(written))
    with pytest.raises(SystemExit, match=f"have {name} another, .*; pass another --out"):
        continued(arguments)


@pytest.mark.slow
@pytest.mark.parametrize("steps", [100, 200])
def test_training_lowers_the_loss_and_records_how(script, tmp_path, monkeypatch, steps):
    small = ("--conversations", "1", "--layers", "1") if steps == 100 else ()
    if small:
        few = partial(train_tokenizer, num_conversations=300)
        monkeypatch.setattr("tiny.tokenizer.train_tokenizer", few)
    printed = script("train_tiny", "--steps", str(steps), "--out", str(tmp_path), *small)
    assert printed["steps"] == steps
    assert printed["final_loss"] < 0.6 * printed["first_loss"]
    manifest = json.loads((tmp_path / "manifest.json").read_text())
    assert manifest | printed == manifest
    assert len(json.loads((tmp_path / "losses.json").read_text())["losses"]) == steps // 50


def test_the_weights_record_how_they_were_made():
    folder = Path(model_path(TINY))
    manifest = json.loads((folder / "manifest.json").read_text())
    assert manifest["steps"] == manifest["settings"]["steps"]
    assert manifest["final_loss"] < 0.1 < manifest["first_loss"]
    assert len(manifest["commit"]) >= 40
    assert "dirty" not in manifest["commit"]
    assert "train_tiny" in manifest["command"]
    assert sum(file.stat().st_size for file in folder.iterdir()) < 12e6
