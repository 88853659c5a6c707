"""No file in the user's cache folder, of any content or permission, stops a load or a run."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pooch
import pytest
from byte_model import loaded
from timed_models import instances

from copyspec_eval import generate
from copyspec_eval.harness.lm import CopySpecLM
from copyspec_eval.sources import FILES

PROMPT = "to be or not to be, that is the question: to be or not to"


def garbage(folder: Path) -> None:
    """Under names that this and earlier versions use, and folders in the place of files."""
    for number, content in enumerate([b"", b"\xff\x00", b"{}", b'{"steps": [[]]}', b"[1e999"]):
        file = folder / "exact_steps" / f"{number}.json"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(content)
    for path, public in FILES.items():
        (folder / public.sha256[:12] / Path(path).name).mkdir(parents=True)
    (folder / "kernels").mkdir(mode=0o700)
    for kernel in Path(pooch.os_cache("copyspec_eval")).glob("kernels/*.so"):
        (folder / "kernels" / kernel.name).write_bytes(b"\x7fELF")


def no_permission(folder: Path) -> None:
    garbage(folder)
    for path in (*folder.rglob("*"), folder):
        path.chmod(0)


def answers(model: Path) -> list[str]:
    """Through lm-eval's model, and from Python."""
    lm = CopySpecLM(str(model), device="cpu", dtype="float32")
    texts = lm.generate_until(instances({"max_gen_toks": 12}, contexts=[PROMPT]))
    [answer] = generate(loaded(model)[0], lm.tokenizer, PROMPT, max_new_tokens=12)
    return [*map(str, texts), answer.text]


def written(folder: Path) -> list[Any]:
    """What lies there and when it was written, but for compiled kernels."""
    paths = [folder, *(path for path in sorted(folder.rglob("*")) if path.suffix != ".so")]
    return [
        (path, path.lstat().st_mode, path.name != "kernels" and path.lstat().st_mtime_ns)
        for path in paths
    ]


FILLS = {
    "file": lambda folder: folder.write_bytes(b"\x00 no folder"),
    "link to itself": lambda folder: folder.symlink_to(folder),
    "garbage": garbage,
    "no permission": no_permission,
}


@pytest.mark.parametrize(
    ("fill", "is_new_process"),
    [("no permission", False), *(pytest.param(f, True, marks=pytest.mark.slow) for f in FILLS)],
)
def test_a_load_and_runs_beside_any_cache_folder(
    fill, is_new_process, byte_model, tmp_path, monkeypatch
):
    wanted, folder = answers(byte_model), tmp_path / "copyspec_eval"
    FILLS[fill](folder)
    before = written(folder)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    if is_new_process:  # it loads its kernels anew
        code = "import sys, pathlib, json, test_cache_folder as test\n"
        code += "print(json.dumps(test.answers(pathlib.Path(sys.argv[1]))))"
        paths = os.pathsep.join([str(Path(__file__).parent), *sys.path])
        command = ["env", f"PYTHONPATH={paths}", sys.executable, "-c", code, str(byte_model)]
        output = subprocess.check_output(command)
        assert json.loads(output.splitlines()[-1]) == wanted
    else:
        assert answers(byte_model) == wanted
    assert written(folder) == before
