"""scripts/gpu_check on the CPU, as on a bare machine: no lm-eval, and nothing of ours installed."""

import itertools
import json
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
import transformers

import copyspec_eval

SCRIPT = Path(copyspec_eval.__file__).parents[1] / "scripts/gpu_check"
PARTS = ["device", "mode", "generate", "drafters", "steps", "memory", "modules"]

# Python's -S leaves out site-packages and its .pth files, so that an editable install is not seen.
BARE = """
import runpy, sys
script, out, device, *folders = sys.argv[1:]
sys.path += folders
absent = "lm_eval accelerate datasets pandas msgspec tabulate evaluate".split()
sys.modules.update(dict.fromkeys(absent))  # neither find_spec nor import finds them
scripts = script.rpartition("/")[0]
sys.path[:0] = [scripts, scripts.rpartition("/")[0]]
{changes}
sys.argv = [script, "--device", device, "--out", out]
runpy.run_path(script, run_name="__main__")
"""


class Done(NamedTuple):
    code: int
    stdout: str
    stderr: str
    report: Any


def run(folder: Path, device: str = "cpu", changes: str = "") -> Done:
    folders = {str(Path(str(module.__file__)).parents[1]) for module in (torch, transformers)}
    out = folder / "gpu_check.json"
    program = BARE.format(changes=changes)
    command = [sys.executable, "-I", "-S", "-c", program, str(SCRIPT), str(out), device, *folders]
    done = subprocess.run(command, capture_output=True, text=True)
    report = json.loads(out.read_text()) if out.exists() else None
    return Done(done.returncode, done.stdout, done.stderr, report)


@pytest.mark.slow
def test_all_parts_report_of_all_dtypes_and_batches(tmp_path: Path) -> None:
    code, stdout, stderr, report = run(tmp_path)
    assert code == 0, stderr
    assert report["ok"]
    assert report["command"].startswith("gpu_check --device cpu")
    parts = report["parts"]
    assert [*parts] == PARTS
    assert [line.split(":")[0] for line in stdout.splitlines() if not line.startswith(" ")] == [
        *PARTS,
        f"all parts are ok; written to {tmp_path / 'gpu_check.json'}",
    ]
    assert parts["device"]["versions"]["torch"] == torch.__version__
    dtypes, sizes = ("float32", "bfloat16"), (1, 4, 8)
    modes = {(row["dtype"], row["batch_size"]) for row in parts["mode"]["modes"]}
    assert modes == set(itertools.product(dtypes, sizes))
    rows = parts["drafters"]["equality"]
    drafters = {"right", "wrong", "partly_right", "junk", "none", "copyspec", "suffix"}
    wanted = set(itertools.product(dtypes, sizes, drafters))
    assert {(row["dtype"], row["batch_size"], row["drafter"]) for row in rows} >= wanted
    for row in rows:
        assert row["compared"] == row["equal"] > 0
        assert row["drafted"] > 0 or row["drafter"] == "none"
        assert row["accepted"] > 0 or row["drafter"] not in ("right", "partly_right")
    timed = {(row["batch_size"], row["width"]) for row in parts["steps"]["steps"]}
    assert timed == set(itertools.product(sizes, (1, 8, 16, 32)))
    assert all(row["bound_ms"] > 0 for row in parts["steps"]["steps"])
    assert parts["memory"]["peak_bytes"] > parts["memory"]["weight_bytes"] > 0


DEFECTS = {
    "device": "check.provenance.versions = None",
    "mode": """
from copyspec_eval.errors import ModelError
def refuse(*args, **options):
    raise ModelError("other bits")
import benchmarks.device_subject as subject
subject.exact_mode = refuse
""",
    "generate": """
real = check._generated
check._generated = lambda *given: [token ^ 1 for token in real(*given)]
""",
    "drafters": """
real = check.Setting.compare_with_none
def differs(self, drafters):
    rows = real(self, drafters)
    return [row | {"equal": row["compared"] - 1} for row in rows]
check.Setting.compare_with_none = differs
""",
    "steps": """
def fails(*given):
    raise RuntimeError("out of memory\\nand a long story")
check.time_steps = fails
""",
    "memory": """
taken = iter(range(0, 1 << 40, 1 << 21))
check._allocated = lambda device: next(taken)
""",
    "modules": "check.mismatches = None",
}


@pytest.mark.slow
@pytest.mark.parametrize("part", PARTS)
def test_a_defect_in_a_part_is_reported_by_that_part(part: str, tmp_path: Path) -> None:
    """And the other parts report as ever, but those that need the mode that is refused."""
    small = "import torch\nimport benchmarks.device_check as check\ncheck.BATCH_SIZES = (2,)\n"
    small += "check.DTYPES = (torch.float32,)\n"
    code, stdout, stderr, report = run(tmp_path, changes=small + DEFECTS[part])
    assert code == 1, stderr
    assert [*report["parts"]] == PARTS
    failed = {name for name, each in report["parts"].items() if not each["ok"]}
    assert failed == {part} | ({"drafters"} if part == "mode" else set())
    assert f"\n{part}: NOT OK" in f"\n{stdout}"
    assert stdout.splitlines()[-1].startswith("NOT OK; written to ")
    assert all(
        each["lines"] and "\n" not in "".join(each["lines"]) for each in report["parts"].values()
    )


def test_without_a_device_the_message_names_the_way_out(tmp_path: Path) -> None:
    changes = "import torch\ntorch.cuda.is_available = lambda: False"
    code, stdout, stderr, report = run(tmp_path, "cuda", changes)
    message = "gpu_check: no CUDA device; pass --device cpu to try the script itself\n"
    assert (code, stdout, stderr, report) == (2, "", message, None)
