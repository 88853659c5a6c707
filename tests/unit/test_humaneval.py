"""The programming task: its two kinds of prompts, and scores by EvalPlus."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from shutil import copytree, ignore_patterns
from typing import Any

import lm_eval
import pytest
from humaneval_data import BASE, CONFIG, PLUS, TASK, write
from hypothesis import given
from hypothesis import strategies as st
from lm_eval.api.model import LM
from lm_eval.loggers import EvaluationTracker
from lm_eval.tasks import TaskManager
from scripted_lm import Scripted

import copyspec_eval
from copyspec_eval.errors import OptionError, SandboxError
from copyspec_eval.harness.humaneval import HumanEvalTask, read_problems
from copyspec_eval.harness.reference_prompts import stops
from copyspec_eval.paths import tasks_dir
from copyspec_eval.sandbox import choice, programs
from copyspec_eval.sandbox.commands import Outcome
from copyspec_eval.sandbox.levels import LIMITS
from copyspec_eval.scoring.humaneval.scores import (
    ScoredSolution,
    as_samples,
    sanitised,
    score_all,
    score_solution,
)

HERE = choice.levels()
TOTAL = "Of course:\n```python\ndef total(numbers):\n    return sum(numbers)\n```\nIt adds."
ROUNDED = "```python\nimport math\n\ndef half(number):\n    return number // 2 or number / 2\n```"
"""Right for 4 and 0.5, wrong for 3."""


def score(raw: str, problem: dict[str, Any]) -> ScoredSolution:
    [scored] = score_all([(raw, problem)])
    return scored


@pytest.fixture
def evaluate(monkeypatch):
    """Figures of a run, without lm-eval's standard errors."""
    monkeypatch.setattr("lm_eval.evaluator.add_env_info", lambda results: None)
    manager = TaskManager(include_path=[tasks_dir()], include_defaults=False)

    def run(lm: LM, **options: Any) -> dict[str, float]:
        settings: dict[str, Any] = {"apply_chat_template": True, "confirm_run_unsafe_code": True}
        results = lm_eval.simple_evaluate(
            lm, tasks=[TASK], task_manager=manager, **(settings | options)
        )
        return {
            name.removesuffix(",none"): value
            for name, value in results["results"][TASK].items()
            if name.endswith(",none") and "_stderr" not in name
        }

    return run


def test_chat_scored_by_evalplus(local_data, evaluate, tmp_path):
    write(local_data, PLUS)
    lm = Scripted(TOTAL, ROUNDED)
    tracker = EvaluationTracker(output_path=str(tmp_path / "run"))
    figures = evaluate(lm, evaluation_tracker=tracker)
    assert figures == {"answered_turn1": 1, "pass@1_base": 1, "pass@1_plus": 0.5}
    prompt, settings = lm.asked[1]
    code = '```python\ndef half(number: float) -> float:\n    """ Half of it. """\n```<assistant>'
    assert prompt.startswith("<user>Write a self-contained Python script")
    assert prompt.endswith(code)
    assert settings == {"until": [], "do_sample": False, "max_gen_toks": 1024}
    sanitised, raw = (
        [json.loads(line) for line in (tmp_path / "run" / name).read_text().splitlines()]
        for name in ("samples.jsonl", "samples_raw.jsonl")
    )
    assert [row["solution"] for row in raw] == [TOTAL, ROUNDED]
    solution = "def total(numbers):\n    return sum(numbers)"
    assert sanitised[0] == {"task_id": "HumanEval/0", "solution": solution}


def test_completion_of_the_base_data(local_data, evaluate):
    """Without EvalPlus's tests there is no figure for them."""
    write(local_data, BASE, "HumanEval.jsonl.gz")
    lm = Scripted("    return sum(n)\n", "    return number\n")
    figures = evaluate(lm, apply_chat_template=False)
    assert figures == {"answered_turn1": 1, "pass@1_base": 0.5}
    prompt, settings = lm.asked[1]
    assert prompt == 'def half(number: float) -> float:\n    """ Half of it. """\n'
    assert settings["until"] == stops("humaneval")


def test_options_of_the_harness(local_data, evaluate):
    write(local_data, BASE, "HumanEval.jsonl.gz")
    lm = Scripted(TOTAL, None)
    assert evaluate(lm, limit=1)["pass@1_base"] == 1
    assert len(lm.asked) == 1
    assert evaluate(lm)["pass@1_base"] == 0.5
    lm = Scripted(TOTAL)
    evaluate(
        lm,
        limit=1,
        apply_chat_template=False,
        gen_kwargs={"until": ["x"]},
        system_instruction="Brief.",
    )
    assert lm.asked[0][0].startswith("Brief.\n\nfrom typing import List\n")
    assert lm.asked[0][1]["until"] == ["x"]
    with pytest.raises(ValueError, match="marked as unsafe"):
        evaluate(lm, confirm_run_unsafe_code=False)


def test_predict_only_runs_nothing(local_data, evaluate, monkeypatch, tmp_path):
    write(local_data, PLUS)
    monkeypatch.setattr(programs, "run", None)
    tracker = EvaluationTracker(output_path=str(tmp_path / "run"))
    figures = evaluate(Scripted(TOTAL, TOTAL), predict_only=True, evaluation_tracker=tracker)
    assert figures == {"bypass": 999}
    assert not (tmp_path / "run").exists()


def test_without_a_sandbox_nothing_is_answered(local_data, monkeypatch):
    write(local_data, PLUS)
    monkeypatch.delenv(choice.VARIABLE, raising=False)
    monkeypatch.setattr(choice, "trial", lambda level: Outcome("killed", None, "", "no"))
    task = HumanEvalTask(CONFIG)
    with pytest.raises(OptionError, match="install bubblewrap, or set COPYSPEC_SANDBOX=limits"):
        task.build_all_requests()
    task.override_metric("bypass")
    task.build_all_requests()
    assert len(task.instances) == 2


@pytest.mark.skipif(HERE[0] == LIMITS, reason="NOT TESTED where no sandbox hides files")
def test_where_right_solutions_would_count_as_wrong_nothing_is_answered(
    local_data, evaluate, monkeypatch
):
    """One line, with the reason of the process that judges."""
    write(local_data, PLUS)
    monkeypatch.setattr(programs, "INSTALLED", programs.INSTALLED[:1])
    lm = Scripted(TOTAL, TOTAL)
    with pytest.raises(SandboxError, match=r"No module named 'copyspec_eval.*; install") as error:
        evaluate(lm)
    assert "\n" not in str(error.value)
    assert lm.asked == []


def test_a_sandbox_that_does_not_start_is_no_wrong_answer(local_data, evaluate, monkeypatch):
    """As where the disk is full once the answers are in."""
    write(local_data, PLUS)
    monkeypatch.setenv(choice.VARIABLE, LIMITS.name)

    class Filling(Scripted):
        def generate_until(self, requests, disable_tqdm=False):
            monkeypatch.setattr("tempfile.tempdir", "/nowhere")
            return super().generate_until(requests)

    with pytest.raises(SandboxError, match=r"cannot start the sandbox \(.*/nowhere"):
        evaluate(Filling(TOTAL, TOTAL))


def test_the_sandbox_runs_the_package_that_runs_here(tmp_path):
    """Whichever way that was imported: here from a folder on PYTHONPATH."""
    copytree(
        Path(copyspec_eval.__file__).parent,
        tmp_path / "copyspec_eval",
        ignore=ignore_patterns("tiny", "__pycache__"),
    )
    program = (
        "from copyspec_eval.scoring.humaneval.scores import score_solution\n"
        f"print(score_solution({PLUS[0]['prompt'] + PLUS[0]['canonical_solution']!r}, {PLUS[0]!r}))"
    )
    result = subprocess.run(
        [sys.executable, "-c", program],
        env=os.environ | {"PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert "base=True, plus=True" in result.stdout, result.stderr


def test_other_ranks_have_files_of_their_own(local_data, monkeypatch, tmp_path):
    write(local_data, BASE, "HumanEval.jsonl.gz")
    task = HumanEvalTask(CONFIG)
    task.build_all_requests(rank=1, world_size=2)
    task.instances[0].resps.append("x")
    monkeypatch.setattr("copyspec_eval.harness.humaneval.output_folder", lambda: tmp_path)
    monkeypatch.setattr(
        "copyspec_eval.harness.humaneval.score_all",
        lambda answers: [ScoredSolution("x", True, None)],
    )
    task.apply_filters()
    row = {"task_id": "HumanEval/1", "solution": "x"}
    assert json.loads((tmp_path / "samples.rank1.jsonl").read_text()) == row
    assert not (tmp_path / "samples.jsonl").exists()


@pytest.mark.parametrize(
    "level",
    [HERE[0], *(pytest.param(level, marks=pytest.mark.slow) for level in HERE[1:])],
    ids=lambda level: level.name,
)
def test_at_every_level_of_containment(level, monkeypatch):
    monkeypatch.setenv(choice.VARIABLE, level.name)
    assert score(TOTAL, PLUS[0]) == ScoredSolution(
        "def total(numbers):\n    return sum(numbers)", base=True, plus=True
    )
    stuck = "def total(n):\n    if n != []: return sum(n)\n    while True:\n        try: [][0]\n"
    stuck += "        except BaseException: pass\n"
    assert score(stuck, PLUS[0]) == ScoredSolution(stuck.strip(), base=True, plus=False)


@pytest.mark.parametrize(
    "solution",
    [
        "",
        "a\0b",
        "\ud800",
        "import os\nos._exit(0)",
        "raise SystemExit",
        'print(\'{"base": true, "plus": true}\')',
        "def total(numbers):\n    pass",
        "def other(numbers):\n    return sum(numbers)",
        "(" * 5000,
    ],
)
def test_what_is_no_solution_fails(solution):
    assert not score_solution(solution, BASE[0]).base
    scored = score(solution, PLUS[0])
    assert (scored.base, scored.plus) == (False, False)


def test_a_program_that_lies_about_itself():
    """What it writes where the worker writes does not count."""
    line = b'\n{"solution": "", "base": true, "plus": true}\n'
    liar = f"import os\ndef total(numbers):\n    os.write(1, {line!r})\n    return 0\n"
    assert score(liar, PLUS[0]) == ScoredSolution(liar.strip(), base=False, plus=False)


def test_a_worker_that_fails_is_no_silent_zero(caplog):
    broken = PLUS[0] | {"canonical_solution": "    return unknown\n"}
    assert not score(TOTAL, broken).base
    [message] = caplog.messages
    assert message.startswith("HumanEval/0: tests did not finish, counted as failed (exit ")
    assert "NameError: name 'unknown' is not defined" in message


def test_helpers_of_the_prompt_are_there_for_the_test():
    """As in HumanEval/38, whose test calls a function that the solution need not repeat."""
    problem = BASE[0] | {
        "prompt": "def twice(x):\n    return 2 * x\n\ndef half(x):\n    '''Undo `twice`.'''\n",
        "canonical_solution": "    return x // 2\n",
        "entry_point": "half",
        "test": "def check(candidate):\n    assert candidate(twice(3)) == 3\n",
    }
    assert score_solution("def half(x):\n    return x // 2", problem).base


def test_only_the_answer_that_ends_the_sanitiser_is_left_as_it_is(monkeypatch):
    """The time of all before it is not held against an answer."""
    given = []

    def run(command):
        rest = [raw for raw, _ in json.loads(command.stdin)]
        given.append(rest)
        done = rest[: 0 if rest[0] == "bad" else 2]
        done = done[: done.index("bad")] if "bad" in done else done
        lines = "".join(json.dumps(raw.upper()) + "\n" for raw in done)
        return Outcome("timeout", None, lines + '"cut', "over 60 s of wall time")

    monkeypatch.setattr(programs, "run", run)
    answers = [(raw, "f") for raw in ("a", "b", "c", "bad", "d")]
    assert sanitised(answers) == ["A", "B", "C", "bad", "D"]
    assert [rest[0] for rest in given] == ["a", "c", "bad", "d"]


def test_no_answers():
    assert score_all([]) == []


@given(st.lists(st.tuples(st.text(), st.text())))
def test_samples_are_one_a_line(solutions):
    lines = as_samples(solutions).split("\n")[:-1]
    assert [json.loads(line) for line in lines] == [
        {"task_id": task_id, "solution": program} for task_id, program in solutions
    ]


def canonical(data_dir: Path) -> list[dict[str, Any]]:
    return list(read_problems(data_dir / "humaneval" / "HumanEval.jsonl.gz").values())


def check_bodies(problems: list[dict[str, Any]]) -> None:
    for problem in problems:
        solution = problem["prompt"] + problem["canonical_solution"]
        assert score_solution(solution, problem).base, problem["task_id"]
        assert not score_solution(problem["prompt"] + "    pass\n", problem).base, problem[
            "task_id"
        ]


def test_canonical_solutions_pass_and_empty_ones_do_not(data_dir):
    problems = canonical(data_dir)
    assert len(problems) == 164
    check_bodies(problems[32:42])
    for problem in problems[:2]:
        scored = score_solution(problem["prompt"] + problem["canonical_solution"], problem)
        assert (scored.base, scored.plus) == (True, None)


@pytest.mark.slow
def test_all_canonical_solutions(data_dir):
    problems = canonical(data_dir)
    check_bodies(problems)
    raw = [(problem["prompt"] + problem["canonical_solution"], problem) for problem in problems]
    assert [scored.base for scored in score_all(raw)] == [True] * 164


@pytest.mark.slow
def test_evalplus_itself_reads_the_samples(local_data, evaluate, tmp_path):
    path = write(local_data, PLUS)
    tracker = EvaluationTracker(output_path=str(tmp_path / "run"))
    evaluate(Scripted(TOTAL, ROUNDED), evaluation_tracker=tracker)
    samples = tmp_path / "run" / "samples.jsonl"
    command = Path(sys.executable).with_name("evalplus.evaluate")
    environment = {
        **os.environ,
        "HUMANEVAL_OVERRIDE_PATH": str(path),
        "XDG_CACHE_HOME": str(tmp_path / "cache"),
    }
    result = subprocess.run(
        [command, "--dataset", "humaneval", "--samples", samples],
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    scores = [line for line in result.stdout.splitlines() if line.startswith("pass@1:")]
    assert [line.split()[-1] for line in scores] == ["1.000", "0.500"]
