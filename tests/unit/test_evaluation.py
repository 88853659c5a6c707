"""What a model knows of its own evaluation, and no other; what the manifest has of each run."""

import json
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from threading import Barrier
from types import SimpleNamespace
from typing import Any

import lm_eval
import pytest
import torch
from in_process import limited_files, rows_in
from lm_eval.loggers import EvaluationTracker
from lm_eval.tasks import TaskManager
from sample_rows import SPEC
from scripted_lm import Scripted, counting

from copyspec_eval import provenance
from copyspec_eval.errors import DataError
from copyspec_eval.harness import evaluation
from copyspec_eval.harness.lm import CopySpecLM
from copyspec_eval.harness.recorder import run_spec
from copyspec_eval.manifest import RunManifest, RunSpec, read_manifests, write_manifest


@pytest.fixture
def settings() -> dict[str, Any]:
    tasks = {"tasks": [counting()], "task_manager": TaskManager(include_defaults=False)}
    return tasks | {"limit": 1, "bootstrap_iters": 0}


@pytest.fixture
def make(byte_model):
    return lambda kind=CopySpecLM: kind(str(byte_model), drafter="none", exact=False, device="cpu")


def test_results_that_do_not_fit_on_the_disk_are_an_error(make, settings, tmp_path):
    """lm-eval warns, and ends as if all were well."""
    tracker = EvaluationTracker(output_path=str(tmp_path))
    results: Any = lm_eval.simple_evaluate(
        make(), evaluation_tracker=tracker, log_samples=True, **settings
    )
    [[sample]] = results.pop("samples").values()
    tracker.save_results_aggregated(results=results, samples={})
    tracker.save_results_samples(task_name="counting", samples=[sample])
    long, error = "x" * 2**20, r"_.*: not written completely; free space"
    with limited_files(2**19):
        with pytest.raises(DataError, match="results" + error):
            tracker.save_results_aggregated(results=results | {"long": long}, samples={})
        with pytest.raises(DataError, match="samples_counting" + error):
            tracker.save_results_samples(task_name="counting", samples=[sample | {"target": long}])


def test_rows_land_in_the_folder_of_the_calls_own_tracker(make, settings, tmp_path):
    lm, folders = make(), [tmp_path / "first", tmp_path / "second"]
    for number, folder in enumerate(folders, start=1):
        tracker = EvaluationTracker(output_path=str(folder))
        lm_eval.simple_evaluate(lm, evaluation_tracker=tracker, **settings | {"limit": number})
    lm_eval.simple_evaluate(lm, **settings)
    assert [len(rows_in(folder)) for folder in folders] == [1, 2]
    assert len({row.run_id for folder in folders for row in rows_in(folder)}) == 2


def test_threads_have_an_evaluation_each(make, settings, tmp_path):
    meet = Barrier(2)

    class Meeting(CopySpecLM):
        def generate_until(self, *args: Any, **kwargs: Any) -> list[str]:
            meet.wait(timeout=60)
            return super().generate_until(*args, **kwargs)

    # Loaded one after the other: transformers' loading leaves its own state behind in two threads.
    loaded = {number: make(Meeting) for number in (1, 3)}

    def run(number: int) -> int:
        folder, manager = tmp_path / str(number), TaskManager(include_defaults=False)
        chosen = {"task_manager": manager, "limit": number}
        tracker = EvaluationTracker(output_path=str(folder))
        lm_eval.simple_evaluate(loaded[number], evaluation_tracker=tracker, **settings | chosen)
        return len(rows_in(folder))

    with ThreadPoolExecutor(2) as pool:
        assert list(pool.map(run, [1, 3])) == [1, 3]


class Asked(Scripted):
    device = torch.device("cpu")

    def all_gather(self, tensor: torch.Tensor) -> torch.Tensor:
        return torch.stack([tensor] * self.world_size)

    def generate_until(self, requests: Any, disable_tqdm: bool = False) -> Any:
        self.count = evaluation.num_answers()
        self.tasks = evaluation.task_settings({"counting", "another"})
        self.settings = evaluation.evaluation_settings()
        self.documents = [evaluation.document_number("counting", each.doc_id) for each in requests]
        raise InterruptedError  # so that lm-eval does not score


@pytest.mark.parametrize("world_size", [1, 2])
@pytest.mark.parametrize(
    ("chosen", "documents"),
    [({}, 5), ({"limit": 3}, 3), ({"limit": 0.5}, 3), ({"samples": {"counting": [4, 0]}}, 2)],
)
def test_answers_of_all_ranks_are_counted(settings, world_size, chosen, documents):
    """This is rank 0, which has documents 0, 2 and 4 of all."""
    lm = Asked()
    lm._world_size = world_size
    settings |= {"tasks": [counting(repeats=3)], "limit": None, **chosen}
    with pytest.raises(InterruptedError):
        lm_eval.simple_evaluate(lm, **settings)
    assert lm.count == 3 * documents
    assert evaluation.num_answers() is None, "a model used by hand"


def test_settings_are_those_of_the_call(settings):
    lm = Asked()
    settings |= {"samples": {"counting": [4, 1]}, "limit": None, "gen_kwargs": "top_k=3"}
    with pytest.raises(InterruptedError):
        lm_eval.simple_evaluate(lm, **settings)
    assert lm.settings["samples"] == {"counting": [4, 1]}
    assert lm.settings["gen_kwargs"] == {"top_k": 3}, "in lm-eval's own reading"
    assert lm.settings["torch_random_seed"] == 1234
    assert lm.documents == [1, 4]
    assert lm.tasks["counting"]["generation_kwargs"]["top_k"] == 3
    assert evaluation.evaluation_settings() == evaluation.task_settings({"counting"}) == {}


def test_evaluate_alone_is_an_evaluation_as_well(settings):
    loaded = settings["task_manager"].load(settings["tasks"])
    for task_dict in (loaded, loaded["tasks"], {"group": loaded["tasks"]}):
        lm = Asked()
        with pytest.raises(InterruptedError):
            lm_eval.evaluate(lm=lm, task_dict=task_dict, limit=2)
        assert (list(lm.tasks), lm.count, lm.settings) == (["counting"], 2, {})


def test_names_that_were_imported_before_are_wrapped_too():
    """And neither torch nor transformers is imported for it."""
    program = """
from lm_eval.evaluator import evaluate, simple_evaluate
from copyspec_eval.harness import autoload
autoload.watch_evaluations()
import lm_eval, sys
assert simple_evaluate is lm_eval.simple_evaluate
assert evaluate is lm_eval.evaluate
assert simple_evaluate.__wrapped__.__name__ == "simple_evaluate"
assert not {"torch", "transformers"} & {*sys.modules}
"""
    subprocess.run([sys.executable, "-c", program], check=True)


FIRST = RunManifest("r", provenance.started_at(), "lm_eval", SPEC)


def test_earlier_runs_are_kept(tmp_path):
    first = replace(FIRST, num_answers=15)
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
    with pytest.raises(DataError, match=r"manifest.json: not a copyspec manifest"):
        write_manifest(tmp_path, FIRST)
    assert path.read_text() == content


def test_an_entry_of_another_schema_is_left_out_and_named(tmp_path):
    write_manifest(tmp_path, replace(FIRST, run_id="good"))
    runs = json.loads((tmp_path / "manifest.json").read_text())["runs"]
    for change in ({"run_id": "old", "schema_version": 1}, {"run_id": "torn", "spec": {}}):
        runs.append(runs[0] | change)
    (tmp_path / "manifest.json").write_text(json.dumps({"runs": runs}))
    notes: list[str] = []
    assert read_manifests(tmp_path, notes).keys() == {"good"}
    assert "run old is left out (schema 1, not 2)" in notes[0]
    assert "run torn is left out (Object missing required field" in notes[1]


def test_a_spec_is_flat_and_of_one_task_as_a_key():
    asked = SPEC.evaluation | {"samples": {"a": [3, 5], "b": [0]}}
    spec = replace(SPEC, tasks={"a": {"version": 1}, "b": {"version": 2}}, evaluation=asked)
    settings = spec.of_task("b").settings()
    assert (settings["drafting.gamma"], settings["task.version"]) == (3, 2)
    assert settings["environment"] == {}
    assert list(settings) == sorted(settings)
    assert spec.of_task("a").key() != spec.of_task("b").key()
    alone = replace(spec, tasks={"a": {"version": 1}})
    assert spec.of_task("a").key() == alone.of_task("a").key()
    assert spec.of_task("a").settings()["task.samples"] == [3, 5]
    assert spec.of_task("c").settings()["task.samples"] is None, "all of them"
    assert "evaluation.samples" not in settings


def test_other_weights_under_one_name_are_another_run():
    def spec(change: float = 0.0, **buffers: int) -> RunSpec:
        model = torch.nn.Linear(1, 1, dtype=torch.float64)
        torch.nn.init.constant_(model.weight, 1 + change)
        torch.nn.init.zeros_(model.bias)
        for name, value in buffers.items():
            model.register_buffer(name, torch.full((3,), value, dtype=torch.int8))
        lm = SimpleNamespace(model=model, world_size=1)
        return run_spec(lm, "M", {}, [], list, backend="copyspec", batch_size=1)

    assert spec() == spec()
    others = [spec(1e-9), spec(packed=1), spec(packed=2)]
    assert len({each.key() for each in (spec(), *others)}) == 4


def test_packages_that_few_have_are_recorded_where_they_are(monkeypatch):
    assert "vllm" not in provenance.versions(), "it is not in this environment"
    monkeypatch.setattr("copyspec_eval.provenance.metadata.version", lambda package: "0.32.0")
    monkeypatch.setattr(provenance, "versions", provenance.versions.__wrapped__)
    assert provenance.versions()["vllm"] == "0.32.0"


def test_run_ids_are_of_their_process():
    ids = provenance.new_run_id(), provenance.new_run_id()
    assert ids[0] != ids[1]
    assert all(map(provenance.is_of_this_process, ids))
    program = "from copyspec_eval.provenance import new_run_id; print(new_run_id())"
    other = subprocess.check_output([sys.executable, "-c", program], text=True)
    assert not provenance.is_of_this_process(other.strip())
