"""A manifest keeps every run and every declared setting of it, and no secret."""

import json
import subprocess
import sys
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from sample_rows import SPEC

from copyspec_eval import provenance
from copyspec_eval.errors import DataError
from copyspec_eval.harness.recorder import run_spec
from copyspec_eval.manifest import RunManifest, RunSpec, read_manifests, write_manifest

FIRST = RunManifest("r", provenance.started_at(), "lm_eval", SPEC)


def test_earlier_runs_are_kept(tmp_path):
    first = replace(FIRST, step_seconds={0: 0.5, 15: 0.75})
    second = replace(first, run_id="another", spec=replace(SPEC, threads=3))
    for run in (first, second, first):
        write_manifest(tmp_path, run)
    notes: list[str] = []
    assert read_manifests(tmp_path, notes) == {"another": second, first.run_id: first}
    assert notes == []
    assert sorted(path.name for path in tmp_path.iterdir()) == [".lock", "manifest.json"]


@pytest.mark.parametrize("content", ["[]", '{"runs": [{}]}', '{"runs": [{"run_id": 3}]}', "\x00"])
def test_a_file_that_only_has_the_manifests_name_is_left_alone(tmp_path, content):
    path = tmp_path / "manifest.json"
    path.write_text(content)
    with pytest.raises(DataError, match=r"manifest.json: not a manifest of ours"):
        write_manifest(tmp_path, FIRST)
    assert path.read_text() == content


def test_an_entry_of_another_schema_is_left_out_and_named(tmp_path):
    write_manifest(tmp_path, replace(FIRST, run_id="good"))
    runs = json.loads((tmp_path / "manifest.json").read_text())["runs"]
    runs += [runs[0] | {"run_id": "old", "schema_version": 1}]
    runs += [runs[0] | {"run_id": "torn", "spec": {}}]
    (tmp_path / "manifest.json").write_text(json.dumps({"runs": runs}))
    notes: list[str] = []
    assert read_manifests(tmp_path, notes).keys() == {"good"}
    assert "run old is left out (schema 1, not 2)" in notes[0]
    assert "run torn is left out (Object missing required field" in notes[1]


def test_a_spec_is_flat_and_of_one_task_as_a_key():
    spec = replace(SPEC, tasks={"a": {"version": 1}, "b": {"version": 2}})
    settings = spec.of_task("b").settings()
    assert settings["drafting.gamma"] == 3
    assert settings["task.version"] == 2
    assert settings["environment"] == {}
    assert list(settings) == sorted(settings)
    assert spec.of_task("a").key() != spec.of_task("b").key()
    assert spec.of_task("a").key() == replace(SPEC, tasks={"a": {"version": 1}}).of_task("a").key()
    asked = replace(SPEC, evaluation=SPEC.evaluation | {"samples": {"a": [3, 5], "b": [0]}})
    assert asked.of_task("a").settings()["task.samples"] == [3, 5]
    assert asked.of_task("c").settings()["task.samples"] is None, "all of them"
    assert "evaluation.samples" not in asked.of_task("a").settings()


def test_other_weights_under_one_name_are_another_run():
    first, second, third, fourth = (torch.nn.Linear(1, 1, dtype=torch.float64) for _ in range(4))
    for other in (second, third, fourth):
        other.load_state_dict(first.state_dict())

    def spec(model: Any) -> RunSpec:
        lm = SimpleNamespace(model=model, world_size=1)
        return run_spec(lm, "M", {}, [], list, backend="copyspec", batch_size=1)

    assert spec(first) == spec(second)
    with torch.no_grad():
        second.bias += 1e-9
    assert spec(first).key() != spec(second).key()
    for packed, value in ((third, 1), (fourth, 2)):
        packed.register_buffer("qweight", torch.full((3,), value, dtype=torch.int8))
    assert len({spec(model).weights for model in (first, third, fourth)}) == 3


def test_packages_that_few_have_are_recorded_where_they_are(monkeypatch):
    assert "vllm" not in provenance.versions(), "it is not in this environment"
    monkeypatch.setattr("copyspec_eval.provenance.metadata.version", lambda package: "0.32.0")
    assert provenance.versions()["vllm"] == "0.32.0"


def test_run_ids_are_of_their_process():
    ids = provenance.new_run_id(), provenance.new_run_id()
    assert ids[0] != ids[1]
    assert all(map(provenance.is_of_this_process, ids))
    program = "from copyspec_eval.provenance import new_run_id; print(new_run_id())"
    other = subprocess.check_output([sys.executable, "-c", program], text=True)
    assert not provenance.is_of_this_process(other.strip())
