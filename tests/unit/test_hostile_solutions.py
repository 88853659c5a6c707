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

from copyspec_eval.sandbox import programs
from copyspec_eval.sandbox.commands import Level
from copyspec_eval.scoring.humaneval.scores import ScoredSolution, score_solution
from copyspec_eval.scoring.humaneval.verdict import SolutionError, solution_function

TESTS = Path(__file__).parents[1]
FORGED = sorted((TESTS / "programs" / "forged").glob("*.py"))
AWKWARD = sorted((TESTS / "programs" / "awkward").glob("*.py"))

EXACT: dict[str, Any] = {"task_id": "HumanEval/0", "contract": "", "atol": 0}
PLUS: dict[str, dict[str, Any]] = {
    "total": EXACT
    | {
        "prompt": "def total(numbers):\n    '''Sum.'''\n",
        "canonical_solution": "    return sum(numbers)\n",
        "base_input": [[[1, 2]], [[3]]],
        "plus_input": [[[]], [[-1, -2]]],
    },
    "half": EXACT
    | {
        "prompt": "def half(number):\n    '''Half of it.'''\n",
        "canonical_solution": "    return number / 2\n",
        "base_input": [[4], [0.5]],
        "plus_input": [[3], [2**70]],
        "atol": 1e-6,
    },
    "words": EXACT
    | {
        "prompt": "def words(text):\n    '''How often each word is there.'''\n",
        "canonical_solution": "    return {w: text.split().count(w) for w in text.split()}\n",
        "base_input": [["a b a"]],
        "plus_input": [[""], ["x"]],
    },
    "halves": EXACT
    | {
        "prompt": "def halves(numbers):\n    '''Half of each.'''\n",
        "canonical_solution": "    return [number / 2 for number in numbers]\n",
        "base_input": [[[3]]],
        "plus_input": [[[5.0]]],
    },
    "parts": EXACT
    | {
        "prompt": "def parts(text):\n    '''The letters of each word.'''\n",
        "canonical_solution": "    return {frozenset(word) for word in text.split()}\n",
        "base_input": [["ab ba c"]],
        "plus_input": [[""], ["x"]],
    },
    "find_zero": EXACT
    | {
        "task_id": "HumanEval/32",
        "prompt": "def find_zero(xs):\n    '''Any zero of the polynomial.'''\n",
        "canonical_solution": "    return -xs[0] / xs[1]\n",
        "base_input": [[[1.0, 2.0]]],
        "plus_input": [[[-6.0, 3.0]]],
        "atol": 1e-4,
    },
}
CHECKS = {
    "total": "assert candidate([1, 2]) == 3 and candidate([]) == 0",
    "half": "assert candidate(4) == 2 and candidate(3) == 1.5",
    "words": "assert candidate('a b a') == {'a': 2, 'b': 1} and candidate('x') == {'x': 1}",
    "halves": "assert candidate([3]) == [1.5] and candidate([5.0]) == [2.5]",
    "parts": "assert candidate('ab ba c') == {frozenset('ab'), frozenset('c')}",
    "find_zero": "assert abs(1 + 2 * candidate([1.0, 2.0])) < 1e-4",
}
FORMS = ("EvalPlus's", pytest.param("OpenAI's", marks=pytest.mark.slow))


def problem_of(program: Path, form: str) -> dict[str, Any]:
    """The problem whose function the program has, with tests in this form."""
    names = {
        name
        for node in ast.parse(program.read_text()).body
        for name in ([node.name] if isinstance(node, ast.FunctionDef) else _assigned(node))
    }
    [entry_point] = names & PLUS.keys()
    return problem(entry_point, form)


def problem(entry_point: str, form: str) -> dict[str, Any]:
    row = PLUS[entry_point] | {"entry_point": entry_point}
    if form == "EvalPlus's":
        return row
    check = f"def check(candidate):\n    {CHECKS[entry_point]}\n"
    names = ("task_id", "prompt", "canonical_solution", "entry_point")
    return {name: row[name] for name in names} | {"test": check}


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
def test_no_forgery_is_taken_for_right(form: str) -> None:
    passed = [name for name, scored in scores(FORGED, form).items() if scored.base or scored.plus]
    assert passed == []
    assert len(FORGED) >= 20


@pytest.mark.parametrize("form", FORMS)
def test_no_right_solution_is_taken_for_wrong(form: str) -> None:
    failed = [
        name
        for name, scored in scores(AWKWARD, form).items()
        if not (scored.base and scored.plus is not False)
    ]
    assert failed == []
    assert len(AWKWARD) >= 20


@pytest.mark.slow
@EVERY_LEVEL
def test_neither_is_so_at_any_level(level: Level, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(programs.VARIABLE, level.name)
    for form in ("EvalPlus's", "OpenAI's"):
        test_no_forgery_is_taken_for_right(form)
        test_no_right_solution_is_taken_for_wrong(form)


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
def test_a_solution_that_drips_is_given_up_like_one_that_is_silent(form: str) -> None:
    started = time.monotonic()
    scored = score_solution(DRIPS, problem("total", form))
    assert not scored.base
    assert time.monotonic() - started < 60


def test_a_solution_has_a_limit_for_its_first_answer() -> None:
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
def test_each_says_what_it_does(program: Path) -> None:
    described = ast.get_docstring(ast.parse(program.read_text()))
    assert described
    assert described.endswith(".")
    assert "\n" not in described
