"""Finds programs in answers, and judges them by EvalPlus: it calls them in another process."""

import ctypes
import json
import multiprocessing
import os
import socket
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from types import ModuleType
from typing import Any

from copyspec_eval.scoring.humaneval.values import decode, encode

_SET_DUMPABLE = 4  # <sys/prctl.h>

_CHECK_SECONDS, _CHECK_FACTOR = 10.0, 10.0
"""Seconds for a problem's own tests: at least this, and this many times the right solution's."""

_ANSWER_BYTES = 2**26


class SolutionError(Exception):
    """The solution raised an exception, ended its process, or gave no readable value."""


def solution_function(
    descriptor: int, sources: Sequence[str], entry_point: str, seconds: float = 30.0
) -> Callable[..., Any]:
    """A function of a solution that runs in another process, behind a socket's `descriptor`.

    Its `sources` are run in order, with the same names, within `seconds`. It returns plain data;
    `SolutionError` if it, or the top level, fails.
    """
    from evalplus.eval.utils import TimeoutException, time_limit

    messages = socket.socket(fileno=descriptor).makefile("rwb")

    def ask(message: Any) -> Any:
        try:
            messages.write(json.dumps(message).encode() + b"\n")
            messages.flush()
            answer = json.loads(messages.readline(_ANSWER_BYTES))
            return decode(answer["value"])
        except (OSError, ValueError, RecursionError, KeyError, TypeError) as error:
            raise SolutionError(str(error)) from error

    try:
        # Not the socket's own limit, which begins again with each byte.
        with time_limit(seconds):
            ask({"sources": sources, "entry_point": entry_point})
    except TimeoutException as error:
        raise SolutionError(str(error)) from error
    return lambda *arguments: ask([encode(argument) for argument in arguments])


def sanitise() -> None:
    """Print the program, a JSON string, in each `[answer, entry_point]` of standard input."""
    from evalplus.sanitize import sanitize

    for raw, entry_point in json.load(sys.stdin):
        try:
            program = str(sanitize(raw, entry_point))
        except (ValueError, RecursionError):  # null bytes and lone surrogates; deep nesting
            program = raw
        print(json.dumps(program), flush=True)


def judge() -> None:
    """Write `{"base": …, "plus": …}`: which tests pass; `plus` after `base`, if there are any.

    Standard input is `{"solution": PROGRAM, "problem": {…}, "channels": {"base": N, "plus": N}}`,
    the channels being descriptors of sockets to two processes of `solution`.
    """
    if sys.platform == "linux":
        # Where programs share a user, the solution could else write to this process's memory.
        ctypes.CDLL(None).prctl(_SET_DUMPABLE, 0, 0, 0, 0)
    task = json.load(sys.stdin)
    problem, channels = task["problem"], task["channels"]
    if "plus_input" not in problem:
        verdicts = {"base": _passes_check(task["solution"], problem, channels["base"])}
    else:
        verdicts = {"base": _passes(task["solution"], problem, "base", channels["base"])}
        if verdicts["base"]:
            verdicts["plus"] = _passes(task["solution"], problem, "plus", channels["plus"])
    print(json.dumps(verdicts))


def _passes(source: str, problem: Mapping[str, Any], tests: str, channel: int) -> bool:
    # The sandbox limits the memory. EvalPlus takes a limit that it may not set for a failed test.
    os.environ["EVALPLUS_MAX_MEMORY_BYTES"] = "-1"
    from evalplus.eval import FAIL, PASS, untrusted_check
    from evalplus.eval._special_oracle import MBPP_OUTPUT_NOT_NONE_TASKS
    from evalplus.gen.util import trusted_exec

    # EvalPlus relies on fork, and the other start methods need sockets.
    multiprocessing.set_start_method("fork", force=True)
    reference = problem["prompt"] + problem["canonical_solution"]
    inputs, entry_point = problem[f"{tests}_input"], problem["entry_point"]
    is_mbpp = problem["task_id"].startswith("Mbpp/")
    if is_mbpp:
        # It loads `datasets`: half a second for each solution.
        from evalplus.data.mbpp import mbpp_deserialize_inputs

        inputs = mbpp_deserialize_inputs(problem["task_id"], inputs)
    not_none = is_mbpp and entry_point in MBPP_OUTPUT_NOT_NONE_TASKS
    expected, seconds = trusted_exec(reference, inputs, entry_point, True, not_none)
    try:
        function = solution_function(channel, [source], entry_point)
    except SolutionError:
        return False
    _compare_shapes()
    # EvalPlus tests the source of a module, in a fork of this process.
    elsewhere = ModuleType("elsewhere")
    setattr(elsewhere, entry_point, function)
    sys.modules["elsewhere"] = elsewhere
    status, details = untrusted_check(
        "mbpp" if is_mbpp else "humaneval",
        f"from elsewhere import {entry_point}",
        inputs,
        entry_point,
        expected=expected,
        atol=problem["atol"],
        ref_time=seconds,
        fast_check=True,
    )
    # EvalPlus 0.3.1 notes no detail of a right `find_zero`, and takes that for a failure
    # (its pull request 201): what fails has the detail of the test that failed.
    is_right_zero = entry_point == "find_zero" and status == FAIL and len(details) == 0
    return bool(status == PASS or is_right_zero)


def _compare_shapes() -> None:
    """Make EvalPlus's `numpy.allclose` false for different shapes, which it would broadcast."""
    import numpy

    allclose = numpy.allclose

    def same_shape_and_close(one: Any, other: Any, **tolerances: Any) -> bool:
        return numpy.shape(one) == numpy.shape(other) and allclose(one, other, **tolerances)

    numpy.allclose = same_shape_and_close  # type: ignore[assignment]


def _passes_check(source: str, problem: Mapping[str, Any], channel: int) -> bool:
    from evalplus.eval.utils import time_limit

    prompt, entry_point = problem["prompt"], problem["entry_point"]
    started = time.perf_counter()
    _check(problem, _names(prompt + problem["canonical_solution"])[entry_point])
    seconds = max(_CHECK_SECONDS, _CHECK_FACTOR * (time.perf_counter() - started))
    try:
        # As in its own harness, the solution can use the prompt's imports and helper functions.
        function = solution_function(channel, [prompt, source], entry_point)
        with time_limit(seconds):
            _check(problem, function)
    except Exception:  # a failed assertion, the time limit, or what the tests make of an answer
        return False
    return True


def _check(problem: Mapping[str, Any], function: Callable[..., Any]) -> None:
    # They may call helper functions of the prompt.
    names = _names(problem["prompt"] + "\n" + problem["test"])
    names[problem["entry_point"]] = function
    names["check"](function)


def _names(source: str) -> dict[str, Any]:
    names: dict[str, Any] = {}
    exec(source, names)
    return names
