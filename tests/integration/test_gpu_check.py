"""scripts/gpu_check on the CPU, as on a bare machine: no lm-eval, and nothing of ours installed."""

import itertools
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

import copyspec_eval

SCRIPT = Path(copyspec_eval.__file__).parents[1] / "scripts/gpu_check"

# Python's -S leaves out site-packages and its .pth files, so that an editable install is not seen.
BARE = """
import runpy, sys
script, *folders = sys.argv[1:]
sys.path += folders
absent = "lm_eval accelerate datasets pandas msgspec tabulate evaluate".split()
sys.modules.update(dict.fromkeys(absent))  # neither find_spec nor import finds them
{changes}
sys.argv = [script, "--device", "{device}"]
runpy.run_path(script, run_name="__main__")
"""


def run(device: str = "cpu", changes: str = "") -> subprocess.CompletedProcess[str]:
    folders = {str(Path(str(module.__file__)).parents[1]) for module in (torch, transformers)}
    program = BARE.format(changes=changes, device=device)
    command = [sys.executable, "-I", "-S", "-c", program, str(SCRIPT), *folders]
    return subprocess.run(command, capture_output=True, text=True)


@pytest.mark.slow
def test_every_dtype_width_and_batch_is_equal():
    done = run()
    assert done.returncode == 0, done.stderr
    result: dict[str, Any] = json.loads(done.stdout)
    rows = result["equality"]
    drafters = ("right", "wrong", "partly_right", "junk", "none", "copyspec")
    names = ("dtype", "longest_draft", "batch_size", "drafter")
    dtypes = ("float32", "bfloat16")
    wanted = set(itertools.product(dtypes, (7, 15, 31), (1, 4), drafters))
    assert {tuple(row[name] for name in names) for row in rows} >= wanted
    for row in rows:
        assert row["compared"] == row["equal"] > 0
        assert row["drafted"] > 0 or row["drafter"] == "none"
        assert row["accepted"] > 0 or row["drafter"] not in ("right", "partly_right")
    assert result["control_differs"]
    exact = {(row["dtype"], row["batch_size"], row["width"]) for row in result["exactness"]}
    assert exact == set(itertools.product(dtypes, (1, 4), (None, 8, 16, 32)))
    timed = {(row["batch_size"], row["width"]) for row in result["step_cost"]}
    assert timed == set(itertools.product((1, 4), (1, 2, 4, 8, 11, 16, 32, 64)))
    assert result["versions"]["torch"] == torch.__version__
    assert result["command"] == "gpu_check --device cpu"


def test_without_a_device_the_message_names_the_way_out():
    done = run("cuda", changes="import torch\ntorch.cuda.is_available = lambda: False")
    message = "gpu_check: no CUDA device; pass --device cpu to try the script itself\n"
    assert (done.returncode, done.stdout, done.stderr) == (2, "", message)
