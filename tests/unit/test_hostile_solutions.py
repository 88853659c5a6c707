"""Solutions that are wrong and try to be taken for right, and right ones that are hard to judge."""

import ast
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from sandbox_levels import EVERY_LEVEL

from copyspec_eval.sandbox.programs import VARIABLE
from copyspec_eval.scoring.humaneval.scores import ScoredSolution, score_solution
from copyspec_eval.scoring.humaneval.verdict import SolutionError, solution_function

TESTS = Path(__file__).parents[1]
FORGED = sorted((TESTS / "programs" / "forged").glob("*.py"))
AWKWARD = sorted((TESTS / "programs" / "awkward").glob("*.py"))

# By function: its parameter, what it returns, and inputs of HumanEval's tests and of EvalPlus's.
FUNCTIONS: dict[str, tuple[str, str, list[Any], list[Any]]] = {
    "total": ("numbers", "sum(numbers)", [[1, 2], [3]], [[], [-1, -2]]),
    "half": ("number", "number / 2", [4, 0.5], [3, 2**70]),
    "words": ("text", "{w: text.split().count(w) for w in text.split()}", ["a b a"], ["", "x"]),
    "halves": ("numbers", "[number / 2 for number in numbers]", [[3]], [[5.0]]),
    "parts": ("text", "{frozenset(word) for word in text.split()}", ["ab ba c"], ["", "x"]),
    "find_zero": ("xs", "-xs[0] / xs[1]", [[1.0, 2.0]], [[-6.0, 3.0]]),
}
CHECKS = {
    "total": "candidate([1, 2]) == 3 and candidate([]) == 0",
    "half": "candidate(4) == 2 and candidate(3) == 1.5",
    "words": "candidate('a b a') == {'a': 2, 'b': 1} and candidate('x') == {'x': 1}",
    "halves": "candidate([3]) == [1.5] and candidate([5.0]) == [2.5]",
    "parts": "candidate('ab ba c') == {frozenset('ab'), frozenset('c')}",
    "find_zero": "abs(1 + 2 * candidate([1.0, 2.0])) < 1e-4",
}
FORMS = ("EvalPlus's", pytest.param("OpenAI's", marks=pytest.mark.slow))


def problem_of(program: Path, form: str) -> dict[str, Any]:
    """The problem whose function the program has, with tests in this form."""
    names = {
        name
        for node in ast.parse(program.read_text()).body
        for name in ([node.name] if isinstance(node, ast.FunctionDef) else _assigned(node))
    }
    [entry_point] = names & FUNCTIONS.keys()
    return problem(entry_point, form)


def problem(entry_point: str, form: str) -> dict[str, Any]:
    parameter, returned, base, plus = FUNCTIONS[entry_point]
    row: dict[str, Any] = {
        "task_id": "HumanEval/32" if entry_point == "find_zero" else "HumanEval/0",
        "prompt": f"def {entry_point}({parameter}):\n    '''What it does.'''\n",
        "canonical_solution": f"    return {returned}\n",
        "entry_point": entry_point,
    }
    if form == "OpenAI's":
        return row | {"test": f"def check(candidate):\n    assert {CHECKS[entry_point]}\n"}
    atol = {"half": 1e-6, "find_zero": 1e-4}.get(entry_point, 0)
    inputs = {"base_input": [[each] for each in base], "plus_input": [[each] for each in plus]}
    return row | inputs | {"contract": "", "atol": atol}


def _assigned(node: ast.stmt) -> list[str]:
    targets = node.targets if isinstance(node, ast.Assign) else []
    return [target.id for target in targets if isinstance(target, ast.Name)]


def scores(programs: list[Path], form: str) -> dict[str, ScoredSolution]:
    """Of whole programs: EvalPlus's sanitiser leaves out what runs at the top level."""
    with ThreadPoolExecutor(2) as pool:
        scored = pool.map(
            lambda program: score_solution(program.read_text(), problem_of(program, form)), programs
        )
        return dict(zip((program.stem for program in programs), scored, strict=True))


@pytest.mark.parametrize("form", FORMS)
def test_no_forgery_is_taken_for_right_and_no_right_solution_for_wrong(form):
    forged, awkward = scores(FORGED, form), scores(AWKWARD, form)
    assert [name for name, scored in forged.items() if scored.base or scored.plus] == []
    failed = (not scored.base or scored.plus is False for scored in awkward.values())
    assert [name for name, wrong in zip(awkward, failed, strict=True) if wrong] == []
    assert min(len(FORGED), len(AWKWARD)) >= 20


@pytest.mark.slow
@pytest.mark.parametrize("form", ["EvalPlus's", "OpenAI's"])
@EVERY_LEVEL
def test_neither_is_so_at_any_level(level, form, monkeypatch):
    monkeypatch.setenv(VARIABLE, level.name)
    test_no_forgery_is_taken_for_right_and_no_right_solution_for_wrong(form)


DRIPS = """
import os, time
while True:
    for descriptor in range(3, 64):
        try:
            os.write(descriptor, b" ")
        except OSError:
            pass
    time.sleep(1)
def total(numbers):
    return sum(numbers)
"""


@pytest.mark.slow
@pytest.mark.parametrize("form", ["EvalPlus's", "OpenAI's"])
def test_a_solution_that_drips_is_given_up_like_one_that_is_silent(form):
    started = time.monotonic()
    scored = score_solution(DRIPS, problem("total", form))
    assert not scored.base
    assert time.monotonic() - started < 60


def test_a_solution_has_a_limit_for_its_first_answer():
    ours, theirs = socket.socketpair()
    done = threading.Event()

    def drip() -> None:
        with theirs:
            while not done.wait(0.05):
                theirs.sendall(b" ")

    dripping = threading.Thread(target=drip)
    dripping.start()
    try:
        with pytest.raises(SolutionError, match="Timed out"):
            solution_function(ours.detach(), ["x = 1"], "x", seconds=0.3)
    finally:
        done.set()
        dripping.join()


@pytest.mark.parametrize("program", [*FORGED, *AWKWARD], ids=lambda program: program.stem)
def test_each_says_what_it_does(program):
    described = ast.get_docstring(ast.parse(program.read_text()))
    assert described
    assert described.endswith(".")
    assert "\n" not in described
