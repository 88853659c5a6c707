"""What a model knows of the evaluation that runs it: its own call's arguments, and no other's."""

import resource
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from threading import Barrier
from typing import Any

import lm_eval
import pytest
import torch
from datasets import Dataset
from in_process import rows_in
from lm_eval.api.model import LM
from lm_eval.loggers import EvaluationTracker
from lm_eval.tasks import TaskManager

from copyspec_eval.errors import DataError
from copyspec_eval.harness import evaluation
from copyspec_eval.harness.lm import CopySpecLM

SCRIPT = """
first, second = (EvaluationTracker(output_path=str(folder)) for folder in folders)
simple_evaluate(lm, evaluation_tracker=first, **settings)
simple_evaluate(lm, evaluation_tracker=second, **settings | {"limit": 2})
simple_evaluate(lm, **settings)
"""


def task(**config: Any) -> dict[str, Any]:
    """Five documents to answer."""
    documents = Dataset.from_list([{"question": f"Count to {number}."} for number in range(5)])
    return {
        "task": "counting",
        "output_type": "generate_until",
        "custom_dataset": lambda **_: {"test": documents},
        "test_split": "test",
        "doc_to_text": "{{question}}",
        "doc_to_target": "",
        "metric_list": [{"metric": "bypass"}],
        "generation_kwargs": {"until": ["."], "max_gen_toks": 4},
    } | config


@pytest.fixture
def settings() -> dict[str, Any]:
    manager = TaskManager(include_defaults=False)
    return {"tasks": [task()], "task_manager": manager, "limit": 1, "bootstrap_iters": 0}


def model(byte_model: Path) -> CopySpecLM:
    return CopySpecLM(str(byte_model), drafter="none", exact=False, device="cpu")


def test_results_that_do_not_fit_on_the_disk_are_an_error(byte_model, settings, tmp_path):
    """lm-eval warns, and ends as if all were well; a limit of a file's size stands for the disk."""
    tracker = EvaluationTracker(output_path=str(tmp_path))
    results = lm_eval.simple_evaluate(
        model(byte_model), evaluation_tracker=tracker, log_samples=True, **settings
    )
    assert results is not None
    [samples] = results.pop("samples").values()
    tracker.save_results_aggregated(results=results, samples={})
    tracker.save_results_samples(task_name="counting", samples=samples)
    long = "x" * 2**20
    with limited_files(2**19):
        with pytest.raises(DataError, match=r"results_.*json: not written completely; free space"):
            tracker.save_results_aggregated(results=results | {"long": long}, samples={})
        more = [samples[0] | {"target": long}]
        with pytest.raises(DataError, match=r"samples_counting_.*l: not written completely; free"):
            tracker.save_results_samples(task_name="counting", samples=more)


@contextmanager
def limited_files(size: int) -> Iterator[None]:
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_rows_land_in_the_folder_of_the_calls_own_tracker(byte_model, settings, tmp_path):
    """Neither in that of an earlier call, nor in that of a tracker among the script's globals."""
    lm, folders = model(byte_model), [tmp_path / "first", tmp_path / "second"]
    names = {"simple_evaluate": lm_eval.simple_evaluate, "EvaluationTracker": EvaluationTracker}
    exec(SCRIPT, names | {"lm": lm, "folders": folders, "settings": settings})
    assert [len(rows_in(folder)) for folder in folders] == [1, 2]
    assert len({row.run_id for folder in folders for row in rows_in(folder)}) == 2


def test_threads_have_an_evaluation_each(byte_model, settings, tmp_path):
    meet = Barrier(2)

    class Meeting(CopySpecLM):
        def generate_until(self, *args: Any, **kwargs: Any) -> list[str]:
            meet.wait(timeout=60)
            return super().generate_until(*args, **kwargs)

    # Loaded one after the other: transformers' loading leaves its own state behind in two threads.
    loaded = {
        number: Meeting(str(byte_model), drafter="none", exact=False, device="cpu")
        for number in (1, 3)
    }

    def run(number: int) -> int:
        tracker = EvaluationTracker(output_path=str(tmp_path / str(number)))
        manager = TaskManager(include_defaults=False)
        chosen = {"task_manager": manager, "limit": number}
        lm_eval.simple_evaluate(loaded[number], evaluation_tracker=tracker, **settings | chosen)
        return len(rows_in(tmp_path / str(number)))

    with ThreadPoolExecutor(2) as pool:
        assert list(pool.map(run, [1, 3])) == [1, 3]


class Ended(Exception):
    """So that lm-eval does not score."""


class Asked(LM):  # type: ignore[misc]  # lm-eval's classes carry no types
    """Looks at the evaluation, as a model may from within."""

    device = torch.device("cpu")

    def __init__(self, world_size: int = 1) -> None:
        super().__init__()
        self._world_size = world_size

    def all_gather(self, tensor: torch.Tensor) -> torch.Tensor:
        return torch.stack([tensor] * self.world_size)

    def generate_until(self, requests: Any, disable_tqdm: bool = False) -> Any:
        self.count = evaluation.num_answers()
        self.tasks = evaluation.task_settings({"counting", "another"})
        self.settings = evaluation.evaluation_settings()
        self.documents = [evaluation.document_number("counting", each.doc_id) for each in requests]
        raise Ended

    loglikelihood = loglikelihood_rolling = generate_until


@pytest.mark.parametrize("world_size", [1, 2])
@pytest.mark.parametrize(
    ("chosen", "documents"),
    [({}, 5), ({"limit": 3}, 3), ({"limit": 0.5}, 3), ({"samples": {"counting": [4, 0]}}, 2)],
)
def test_answers_of_all_ranks_are_counted(settings, world_size, chosen, documents):
    """This is rank 0, which has documents 0, 2 and 4 of all."""
    lm = Asked(world_size)
    with pytest.raises(Ended):
        lm_eval.simple_evaluate(
            lm, **settings | {"tasks": [task(repeats=3)], "limit": None} | chosen
        )
    assert lm.count == 3 * documents
    assert evaluation.num_answers() is None, "a model used by hand"


def test_settings_are_those_of_the_call(settings):
    lm = Asked()
    samples = {"samples": {"counting": [4, 1]}, "limit": None}
    with pytest.raises(Ended):
        lm_eval.simple_evaluate(lm, **settings | samples | {"gen_kwargs": "top_k=3"})
    assert lm.settings["samples"] == {"counting": [4, 1]}
    assert lm.settings["gen_kwargs"] == {"top_k": 3}, "in lm-eval's own reading"
    assert lm.settings["torch_random_seed"] == 1234
    assert lm.documents == [1, 4]
    assert lm.tasks["counting"]["generation_kwargs"]["top_k"] == 3
    assert evaluation.evaluation_settings() == evaluation.task_settings({"counting"}) == {}


def test_evaluate_alone_is_an_evaluation_as_well(settings):
    """However a caller of it groups the tasks."""
    loaded = settings["task_manager"].load(settings["tasks"])
    for task_dict in (loaded, loaded["tasks"], {"group": loaded["tasks"]}):
        lm = Asked()
        with pytest.raises(Ended):
            lm_eval.evaluate(lm=lm, task_dict=task_dict, limit=2)
        assert (list(lm.tasks), lm.count, lm.settings) == (["counting"], 2, {})


def test_names_that_were_imported_before_are_wrapped_too():
    """And neither torch nor transformers is imported for it."""
    program = (
        "import sys\n"
        "from lm_eval.evaluator import evaluate, simple_evaluate\n"
        "from copyspec_eval.harness import autoload\n"
        "autoload.watch_evaluations()\n"
        "import lm_eval\n"
        "print(simple_evaluate is lm_eval.simple_evaluate, evaluate is lm_eval.evaluate,\n"
        "      simple_evaluate.__wrapped__.__name__, {'torch', 'transformers'} & {*sys.modules})"
    )
    result = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert result.stdout == "True True simple_evaluate set()\n"
