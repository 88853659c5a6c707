"""What a run was: versions, hardware, command, settings, so that its figures can be placed."""

from __future__ import annotations

import functools
import json
import os
import platform
import re
import secrets
import sys
from dataclasses import asdict, dataclass
from datetime import datetime, timezone
from importlib import metadata
from pathlib import Path
from typing import Any

from copyspec_eval.errors import DataError

MANIFEST_VERSION = 1

PACKAGES = ("copyspec-eval", "lm-eval", "torch", "transformers", "accelerate", "tokenizers")

_SECRET = re.compile(r"((?:token|api_key|password|secret)\w*=)[^,\s]+", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class RunManifest:
    """What a run was.

    Attributes:
        run_id: as in the run's records.
        started_at: UTC, ISO 8601.
        command: the command line, secrets blanked.
        config: the model's settings: drafter, width, dtype, batch, logits processors, …
        versions: of Python and the packages that decide the numbers.
        hardware: processors, threads, accelerators, memory in bytes.
    """

    run_id: str
    started_at: str
    command: str
    config: dict[str, Any]
    versions: dict[str, str]
    hardware: dict[str, Any]
    schema_version: int = MANIFEST_VERSION


@functools.cache
def run_id() -> str:
    """This process's id, sortable by time; under torch.distributed the one of rank 0.

    Asked for the first time by all ranks at the same point, since it is broadcast then.
    """
    now = datetime.now(timezone.utc).strftime("%Y%m%dT%H%M%S")
    own = [f"{now}-{secrets.token_hex(3)}"]
    distributed = sys.modules.get("torch.distributed")
    if distributed is not None and distributed.is_available() and distributed.is_initialized():
        distributed.broadcast_object_list(own, src=0)
    return own[0]


def manifest(config: dict[str, Any]) -> RunManifest:
    """The manifest of this process's run with the given model settings."""
    return RunManifest(
        run_id=run_id(),
        started_at=datetime.now(timezone.utc).isoformat(timespec="seconds"),
        command=_SECRET.sub(r"\1***", " ".join([Path(sys.argv[0]).name, *sys.argv[1:]])),
        config=config,
        versions=_versions(),
        hardware=_hardware(),
    )


def write_manifest(folder: Path, run: RunManifest) -> None:
    """Put `run` into `manifest.json`, beside those of earlier runs into the same folder.

    The file is `{"runs": [manifest, …]}`, oldest first, replaced as a whole or not at all.

    Raises:
        DataError: a file of that name is there and is none of ours.
    """
    path = folder / "manifest.json"
    folder.mkdir(parents=True, exist_ok=True)
    try:
        earlier = json.loads(path.read_text(encoding="utf-8"))["runs"] if path.exists() else []
        runs = [entry for entry in earlier if entry["run_id"] != run.run_id] + [asdict(run)]
    except (ValueError, KeyError, TypeError) as error:
        raise DataError(
            f"{path}: not a manifest of ours ({error!r}); write the run to another folder"
        ) from error
    partial = path.with_suffix(".json.partial")
    partial.write_text(json.dumps({"runs": runs}, indent=2) + "\n", encoding="utf-8")
    partial.replace(path)


def _versions() -> dict[str, str]:
    versions = {"python": platform.python_version()}
    for package in PACKAGES:
        try:
            versions[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            versions[package] = "not installed"
    return versions


def _hardware() -> dict[str, Any]:
    import torch

    devices = range(torch.cuda.device_count())
    return {
        "processor": _processor(),
        "processors": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "accelerators": [torch.cuda.get_device_name(device) for device in devices],
        "cuda": torch.version.cuda,
    }


def _processor() -> str:
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        match = re.search(r"^model name\s*:\s*(.+)$", cpuinfo.read_text(), re.MULTILINE)
        if match:
            return match.group(1)
    return platform.processor() or platform.machine()
