"""The script that times decoders in conversations."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "scripts" / "conversations"


def run(model: Path, questions: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, SCRIPT, "--model", model, "--limit", "2", "--tokens", "6", *arguments],
        env={**os.environ, "COPYSPEC_DATA_DIR": str(questions)},
        capture_output=True,
        text=True,
        timeout=240,
    )


@pytest.mark.parametrize(
    "arguments",
    [
        ("--batch-size", "2", "copyspec", "drafter=suffix,exact=false,prefix_cache=0"),
        ("hf", "prompt_lookup_num_tokens=3"),
    ],
    ids=lambda arguments: arguments[-2],
)
def test_both_turns_have_a_rate(byte_model, questions, arguments):
    done = run(byte_model, questions, *arguments)
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout.splitlines()[-1])
    assert [rate > 0 for rate in result["tokens_per_second"]] == [True, True]
    assert result["version"] != "unknown"


def test_hf_in_batches_is_refused(byte_model, questions):
    done = run(byte_model, questions, "--batch-size", "2", "hf")
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1].startswith("hf answers one conversation at a time; pass")


def test_what_there_is_not_is_refused_in_a_line(byte_model, questions, tmp_path):
    for folder, arguments, message in (
        (tmp_path, (), "set COPYSPEC_DATA_DIR to a folder that has it"),
        (questions, ("--limit", "99"), "--limit 99 must be from 1 to 6 conversations"),
    ):
        done = run(byte_model, folder, "hf", *arguments)
        assert done.returncode == 1
        [line] = done.stderr.splitlines()
        assert line.endswith(message)
