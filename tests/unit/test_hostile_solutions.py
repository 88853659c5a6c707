"""Solutions that are wrong and try to be taken for right, and right ones that are hard to judge."""

import re
import socket
import textwrap
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from sandbox_levels import EVERY_LEVEL

from copyspec_eval.sandbox.programs import VARIABLE
from copyspec_eval.scoring.humaneval.scores import score_solution
from copyspec_eval.scoring.humaneval.verdict import SolutionError, solution_function

# By function: its parameter, what it returns, and inputs of HumanEval's tests and of EvalPlus's.
FUNCTIONS: dict[str, tuple[str, str, list[Any], list[Any]]] = {
    "total": ("numbers", "sum(numbers)", [[1, 2], [3]], [[], [-1, -2]]),
    "half": ("number", "number / 2", [4, 0.5, 7], [3, 2**70]),
    "words": (
        "text",
        "{w: text.split().count(w) for w in text.split()}",
        ["a b a", "c", "d d"],
        ["", "x"],
    ),
    "halves": ("numbers", "[number / 2 for number in numbers]", [[3]], [[5.0]]),
    "parts": ("text", "{frozenset(word) for word in text.split()}", ["ab ba c"], ["", "x"]),
    "find_zero": ("xs", "-xs[0] / xs[1]", [[1.0, 2.0]], [[-6.0, 3.0]]),
}
# By what is special about it: a function, and how it ends.
FORGED_ENDINGS = {
    "array-without-elements": ("half", "import numpy; return numpy.array([])"),
    "column-of-repeats": ("halves", "return [[numbers[0] / 2] * 3]"),
    "masked-value": ("half", "import numpy; return numpy.ma.masked"),
    "no-number": ("find_zero", "return float('nan')"),
    "interrupt": ("total", "raise KeyboardInterrupt"),
    "lists-in-lists": (
        "words",
        "deep = []\n    for _ in range(200_000): deep = [deep]\n    return deep",
    ),
    "arguments-changed": ("find_zero", "xs[:] = [0.0] * len(xs); return 5.0"),
}
AWKWARD_ENDINGS = {
    "nested-sets-and-a-low-limit": (
        "parts",
        "import sys; sys.setrecursionlimit(12); return {frozenset(word) for word in text.split()}",
    )
}


def solutions(kind: str, endings: dict[str, tuple[str, str]]) -> dict[str, str]:
    """The sources of what is in their file, and of functions that end like this."""
    text = (Path(__file__).parents[1] / "programs" / kind / "solutions.py").read_text()
    head, *parts = re.split(r"^def (?!_)(\w+)\(\):\n", text, flags=re.MULTILINE)
    bodies = zip(parts[::2], parts[1::2], strict=True)
    sources = {name: head + textwrap.dedent(body) for name, body in bodies}
    for name, (function, ending) in endings.items():
        sources[name] = f"def {function}({FUNCTIONS[function][0]}):\n    {ending}\n"
    return sources


FORGED, AWKWARD = solutions("forged", FORGED_ENDINGS), solutions("awkward", AWKWARD_ENDINGS)
FORMS = ("EvalPlus's", pytest.param("OpenAI's", marks=pytest.mark.slow))


def problem(entry_point: str, form: str) -> dict[str, Any]:
    """With tests in this form."""
    parameter, returned, base, plus = FUNCTIONS[entry_point]
    row: dict[str, Any] = {
        "task_id": "HumanEval/32" if entry_point == "find_zero" else "HumanEval/0",
        "prompt": f"def {entry_point}({parameter}):\n    '''What it does.'''\n",
        "canonical_solution": f"    return {returned}\n",
        "entry_point": entry_point,
    }
    if form == "OpenAI's":
        function = eval(f"lambda {parameter}: {returned}")
        tests = [f"candidate({each!r}) == {function(each)!r}" for each in base + plus]
        if entry_point == "find_zero":
            tests = ["abs(1 + 2 * candidate([1.0, 2.0])) < 1e-4"]
        return row | {"test": f"def check(candidate):\n    assert {' and '.join(tests)}\n"}
    atol = {"half": 1e-6, "find_zero": 1e-4}.get(entry_point, 0)
    inputs = {"base_input": [[each] for each in base], "plus_input": [[each] for each in plus]}
    return row | inputs | {"contract": "", "atol": atol}


def verdicts(sources: dict[str, str], form: str) -> dict[str, tuple[bool, bool | None]]:
    """Of whole programs: EvalPlus's sanitiser leaves out what runs at the top level."""

    def verdict(source: str) -> tuple[bool, bool | None]:
        names = re.findall(rf"^(?:def )?({'|'.join(FUNCTIONS)})\b", source, re.MULTILINE)
        scored = score_solution(source, problem(names[0], form))
        return scored.base, scored.plus

    with ThreadPoolExecutor(2) as pool:
        return dict(zip(sources, pool.map(verdict, sources.values()), strict=True))


@pytest.mark.parametrize("form", FORMS)
def test_no_forgery_is_taken_for_right_and_no_right_solution_for_wrong(form):
    actual = verdicts(AWKWARD | FORGED, form)
    assert [name for name in FORGED if True in actual[name]] == []
    assert [name for name in AWKWARD if False in actual[name]] == []
    assert len(actual) >= 20


@pytest.mark.slow
@pytest.mark.parametrize("form", FORMS)
@EVERY_LEVEL
def test_neither_is_so_at_any_level(level, form, monkeypatch):
    monkeypatch.setenv(VARIABLE, level.name)
    test_no_forgery_is_taken_for_right_and_no_right_solution_for_wrong(form)


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
