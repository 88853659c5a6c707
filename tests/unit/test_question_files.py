"""Tasks of own question files, by a YAML file alone."""

import json
import os
import subprocess
from pathlib import Path

import pytest
from lm_eval_command import BIN

YAML = """\
task: own_questions
class: !function copyspec_eval.harness.tasks.QuestionFileTask
dataset_kwargs:
  questions: {questions}
test_split: test
output_type: generate_until
generation_kwargs: {{until: [], do_sample: false, max_gen_toks: 8}}
"""


def lm_eval(folder: Path, *more: str) -> subprocess.CompletedProcess[str]:
    command = [str(BIN / "lm_eval"), "--model", "copyspec", *more, "--log_samples"]
    command += ["--output_path", str(folder / "run"), "--apply_chat_template"]
    return subprocess.run(command, cwd=folder, env={**os.environ}, capture_output=True, text=True)


def write(folder: Path, questions: str) -> Path:
    (folder / "tasks").mkdir()
    file = folder / "tasks" / "own.yaml"
    file.write_text(YAML.format(questions=questions))
    return file


def test_a_file_and_five_lines_make_a_task(byte_model, tmp_path):
    row = {"question_id": 7, "category": "own", "turns": ["One?", "Two?", "Three?"]}
    (tmp_path / "own.jsonl").write_text(json.dumps(row) + "\n")
    file = write(tmp_path, "own.jsonl")
    model = ("--model_args", f"pretrained={byte_model}")
    done = lm_eval(tmp_path, *model, "--tasks", str(file))
    assert done.returncode == 0, done.stderr
    rows = [json.loads(line) for line in (tmp_path / "run" / "turns.jsonl").open()]
    assert [(row["task"], row["turn"], row["category"]) for row in rows] == [
        ("own_questions", turn, "own") for turn in (1, 2, 3)
    ]


@pytest.mark.parametrize("by_name", [True, False])
def test_a_wrong_path_is_refused_before_a_model_is_loaded(tmp_path, by_name):
    file = write(tmp_path, "nowhere.jsonl")
    named = ["--tasks", str(file)]
    if by_name:
        named = ["--include_path", str(file.parent), "--tasks", "own_questions"]
    done = lm_eval(tmp_path, "--model_args", "pretrained=/there/is/no/model", *named)
    assert done.returncode == 1
    last = done.stderr.strip().splitlines()[-1]
    assert last.startswith("copyspec-eval: error: nowhere.jsonl: no such file; give a path")
    assert "mt_bench/question.jsonl" in last
    assert not (tmp_path / "run").exists()
