"""What a run was asked to do: every setting that decides its figures, beside its records."""

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import msgspec

from copyspec_eval import journal
from copyspec_eval.errors import DataError

MANIFEST_VERSION = 2
_FILE = "manifest.json"


@dataclass(frozen=True, slots=True)
class RunSpec:
    """Every resolved setting of a run, as JSON values; runs with equal specs are repetitions."""

    backend: str  # "copyspec", or the stock lm-eval model that was timed
    model: str
    model_args: dict[str, Any]  # every argument of the model class, as resolved
    drafting: dict[str, Any]  # drafter, its settings, kind of step, `paired`; empty for others
    batch_size: int | str
    device: str
    dtype: str
    weights: str | None  # hash of a sample of them; None where the backend does not show them
    quantization: dict[str, Any] | None
    ranks: int
    threads: int  # of torch, per process
    hardware: dict[str, Any]
    environment: dict[str, str]  # variables that choose kernels, and modes of vLLM
    versions: dict[str, str]
    code: str | None
    evaluation: dict[str, Any]  # lm-eval's: `limit`, seeds, chat template, `gen_kwargs`, …
    tasks: dict[str, dict[str, Any]]  # version, shots, request settings, hash of the definition, …

    def of_task(self, task: str) -> "RunSpec":
        """The settings of one task alone; its "samples" are its documents, None for all."""
        evaluation = dict(self.evaluation)
        documents = (evaluation.pop("samples", None) or {}).get(task)
        settings = self.tasks.get(task, {}) | {"samples": documents}
        return replace(self, evaluation=evaluation, tasks={task: settings})

    def settings(self) -> dict[str, Any]:
        """All settings, flat and in order: {"drafting.gamma": 3, "task.version": 1, …}."""
        nested = msgspec.to_builtins(self)
        tasks = nested.pop("tasks").values()
        flat: dict[str, Any] = {}
        for name, value in [*nested.items(), *(("task", settings) for settings in tasks)]:
            flat |= _flat(name, value)
        return dict(sorted(flat.items()))

    def key(self) -> str:
        return json.dumps(msgspec.to_builtins(self), sort_keys=True)


def _flat(name: str, value: Any) -> dict[str, Any]:
    if not isinstance(value, dict) or not value:
        return {name: value}
    flat: dict[str, Any] = {}
    for inner, part in value.items():
        flat |= _flat(f"{name}.{inner}", part)
    return flat


@dataclass(frozen=True, slots=True)
class RunManifest:
    """One run."""

    run_id: str
    started_at: str
    command: str
    spec: RunSpec
    num_answers: int | None = None
    schema_version: int = MANIFEST_VERSION


def write_manifest(folder: Path, run: RunManifest) -> None:
    """Add `run` to `manifest.json`, after earlier runs into the same folder."""
    path = folder / _FILE
    with journal.locked(folder):
        earlier = [entry for entry in _entries(path) if entry["run_id"] != run.run_id]
        text = json.dumps({"runs": [*earlier, msgspec.to_builtins(run, str_keys=True)]}, indent=2)
        journal.replace(path, text + "\n")


def read_manifests(folder: Path, notes: list[str]) -> dict[str, RunManifest]:
    """The manifests of the runs into `folder` by run id; a note on each of another schema."""
    manifests = {}
    for entry in _entries(folder / _FILE):
        try:
            if entry.get("schema_version") != MANIFEST_VERSION:
                raise ValueError(f"schema {entry.get('schema_version')}, not {MANIFEST_VERSION}")
            manifests[entry["run_id"]] = msgspec.convert(entry, RunManifest, str_keys=True)
        except ValueError as error:
            left_out = f"run {entry['run_id']} is left out ({error})"
            notes.append(f"{folder / _FILE}: {left_out}; its settings are unknown")
    return manifests


def _entries(path: Path) -> list[dict[str, Any]]:
    if not path.exists():
        return []
    try:
        entries = journal.parsed(journal.read(path))["runs"]
        if not all(isinstance(entry["run_id"], str) for entry in entries):
            raise ValueError("a run_id is not a text")
    except (ValueError, KeyError, TypeError) as error:
        remedy = "move it away or choose another folder"
        raise DataError(f"{path}: not a copyspec manifest ({error!r}); {remedy}") from error
    return list(entries)
