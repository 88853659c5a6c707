"""Tasks of own question files, by a YAML file alone."""

import json
from functools import partial
from pathlib import Path

import pytest
from in_process import evaluate_into, rows_in
from lm_eval.config.evaluate_config import EvaluatorConfig
from lm_eval.tasks import TaskManager

from copyspec_eval.errors import DataError
from copyspec_eval.harness import autoload

YAML = """\
task: own_questions
class: !function copyspec_eval.harness.tasks.QuestionFileTask
dataset_kwargs:
  questions: own.jsonl
test_split: test
output_type: generate_until
generation_kwargs: {until: [], do_sample: false, max_gen_toks: 8}
"""


@pytest.fixture(autouse=True)
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tasks").mkdir()
    (tmp_path / "tasks" / "own.yaml").write_text(YAML)
    return tmp_path / "tasks" / "own.yaml"


def test_a_file_and_five_lines_make_a_task(file, byte_model, tmp_path):
    row = {"question_id": 7, "category": "own", "turns": ["One?", "Two?", "Three?"]}
    (tmp_path / "own.jsonl").write_text(json.dumps(row) + "\n")
    options, tasks = "dtype=float32,exact=false", ["own_questions"]
    evaluate_into(tmp_path / "run", byte_model, options, tasks=tasks, include=[file.parent])
    assert [(row.task, row.turn, row.category) for row in rows_in(tmp_path / "run")] == [
        ("own_questions", turn, "own") for turn in (1, 2, 3)
    ]


@pytest.mark.parametrize("by_name", [True, False])
def test_a_wrong_path_is_refused_before_a_model_is_loaded(file, monkeypatch, by_name):
    autoload.watch_command()
    monkeypatch.setattr("lm_eval.tasks.TaskManager", partial(TaskManager, include_defaults=False))
    task = "own_questions" if by_name else str(file)
    config = EvaluatorConfig(tasks=[task], include_path=str(file.parent) if by_name else None)
    with pytest.raises(DataError, match=r"^own\.jsonl: no such file; give a path.*mt_bench/quest"):
        config.process_tasks()
