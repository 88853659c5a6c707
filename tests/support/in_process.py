"""An evaluation as `lm_eval` does it and files as it leaves them, without a process of its own."""

import resource
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from lm_eval import simple_evaluate
from lm_eval.loggers import EvaluationTracker
from lm_eval.tasks import TaskManager

from copyspec_eval import records
from copyspec_eval.harness import autoload
from copyspec_eval.paths import tasks_dir
from copyspec_eval.records import TurnRecord


def evaluate_into(
    folder: Path,
    model: Path,
    options: str | dict[str, Any],
    backend: str = "copyspec",
    tasks: Sequence[str] = ("mt_redundant",),
    include: Sequence[Path] = (),
    **settings: Any,
) -> dict[str, Any]:
    """Answer `tasks`, ours or of the folders `include`, into `folder`; the first one's results.

    `options` are model arguments, as text or as of JSON.
    """
    autoload.register_model()
    autoload.watch_evaluations()
    tracker = EvaluationTracker(output_path=str(folder))
    given: Any = {"pretrained": str(model)} | options if isinstance(options, dict) else None
    results = simple_evaluate(
        model=backend,
        model_args=given or f"pretrained={model},{options}",
        tasks=list(tasks),
        # Reading all of lm-eval's own tasks would take longer than most evaluations here.
        task_manager=TaskManager(include_path=[tasks_dir(), *include], include_defaults=False),
        device="cpu",
        apply_chat_template=True,
        evaluation_tracker=tracker,
        log_samples=True,
        bootstrap_iters=0,
        **{"gen_kwargs": "max_gen_toks=48", "batch_size": 1} | settings,
    )
    assert results is not None
    samples = results.pop("samples")
    tracker.save_results_aggregated(results=results, samples=samples)
    for task, of_task in samples.items():
        tracker.save_results_samples(task_name=task, samples=of_task)
    figures: dict[str, Any] = results["results"][tasks[0]]
    return figures


def rows_in(folder: Path) -> list[TurnRecord]:
    return [row for file in folder.glob("turns*.jsonl") for row in records.read(file, [])]


@contextmanager
def limited_files(size: int) -> Iterator[None]:
    """Within it no file grows beyond `size` bytes, as where a disk is full."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
