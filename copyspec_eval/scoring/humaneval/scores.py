"""Scores answers to HumanEval's problems; EvalPlus forks, and limits memory, elsewhere."""

import functools
import json
import logging
import os
import socket
import sys
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from tqdm.contrib.concurrent import thread_map

from copyspec_eval.errors import SandboxError
from copyspec_eval.sandbox import programs
from copyspec_eval.sandbox.commands import Level, Limits, Outcome

logger = logging.getLogger("lm_eval.copyspec")

Problem = Mapping[str, Any]
"""A row of EvalPlus's HumanEval+, or of OpenAI's HumanEval, which has `test` instead of inputs."""

# EvalPlus stops each of its two sets of tests after a minute, and allows as much memory.
_LIMITS = Limits(wall_seconds=240, cpu_seconds=240, memory_bytes=4 * 2**30, output_bytes=2**20)
_SANITISER_LIMITS = replace(_LIMITS, wall_seconds=60, cpu_seconds=60, output_bytes=2**28)
# Of the `multiprocessing` that EvalPlus uses.
_LOCKS = (Path("/dev/shm"),)

_RIGHT_ANSWER = "```python\ndef same(x):\n    return x\n```"
_RIGHT_PROBLEM = {
    **{"task_id": "HumanEval/same", "entry_point": "same"},
    **{"prompt": "def same(x):\n", "canonical_solution": "    return x\n"},
    **{"base_input": [[1]], "plus_input": [[2]], "atol": 0},
}


@dataclass(frozen=True, slots=True)
class ScoredSolution:
    """A tested answer, and whether it passes HumanEval's tests and then those of EvalPlus too."""

    solution: str  # as sanitised by EvalPlus; the raw answer if that failed
    base: bool
    plus: bool | None  # None if there are no such tests


def check() -> None:
    """Refuse to score programs where a right one would count as wrong."""
    _check(programs.level(), programs.INSTALLED)


@functools.cache
def _check(level: Level, installed: tuple[Path, ...]) -> None:
    outcome = _sanitise([(_RIGHT_ANSWER, "same")])
    if outcome.status == "ok":
        outcome = _judge(json.loads(outcome.stdout), _RIGHT_PROBLEM)
    if set(_verdicts(outcome).values()) != {True}:
        raise SandboxError(
            "correct programs would count as wrong: "
            f"{outcome.reason or 'one does not pass its tests'}; install EvalPlus in {sys.prefix}, "
            f"or choose another {programs.VARIABLE} than {level.name}"
        )


def score_all(answers: Sequence[tuple[str, Problem]]) -> list[ScoredSolution]:
    """Sanitise and test answers in Markdown, or prompts that are completed, in parallel."""
    programs.announce(programs.level())
    check()
    solutions = sanitised([(raw, problem["entry_point"]) for raw, problem in answers])
    problems = [problem for _, problem in answers]
    # As EvalPlus does: its limits are of wall time, so solutions must not share a processor.
    how = {"max_workers": max(1, (os.cpu_count() or 1) // 2), "desc": "Scoring solutions"}
    scored: list[ScoredSolution] = thread_map(
        score_solution, solutions, problems, unit="solution", **how
    )
    return scored


def score_solution(solution: str, problem: Problem) -> ScoredSolution:
    """Test a program that is sanitised already."""
    outcome = _judge(solution, problem)
    if outcome.status != "ok":
        # A wrong solution does not end that process; what does end it may not be its fault.
        message = "%s: tests did not finish, counted as failed (%s)"
        logger.warning(message, problem["task_id"], outcome.reason)
    verdicts = _verdicts(outcome)
    plus = verdicts.get("plus") is True if "plus_input" in problem else None
    return ScoredSolution(solution, verdicts.get("base") is True, plus)


def sanitised(answers: Sequence[tuple[str, str]]) -> list[str]:
    """The programs in answers; an answer itself where the sanitiser fails on it twice."""
    sources: list[str] = []
    while len(sources) < len(answers):
        rest = answers[len(sources) :]
        outcome = _sanitise(rest)
        whole = outcome.stdout.split("\n")[:-1]
        sources += [str(json.loads(line)) for line in whole]
        if not whole:
            logger.warning("an answer is tested as it is, unsanitised: %s", outcome.reason)
            sources.append(rest[0][0])
    return sources


def as_samples(solutions: Iterable[tuple[str, str]]) -> str:
    """`(task_id, program)` pairs in the format of `evalplus.evaluate --samples`, one per line."""
    rows = ({"task_id": task_id, "solution": program} for task_id, program in solutions)
    return "".join(json.dumps(row) + "\n" for row in rows)


def _sanitise(answers: Sequence[tuple[str, str]]) -> Outcome:
    place, stdin = "scoring.humaneval.verdict:sanitise", json.dumps(answers).encode()
    return programs.run(programs.function(place, stdin=stdin, limits=_SANITISER_LIMITS))


def _judge(solution: str, problem: Problem) -> Outcome:
    tests = ("base", "plus") if "plus_input" in problem else ("base",)
    with ExitStack() as stack:
        channels = {}
        for test in tests:  # a process that waits for a solution on the other end of a socket
            channels[test], theirs = map(stack.enter_context, socket.socketpair())
            place, number = "scoring.humaneval.solution:answer", str(theirs.fileno())
            waiting = programs.function(place, number, limits=_LIMITS, channels=[theirs])
            stack.enter_context(programs.running(waiting))
        numbers = {test: channel.fileno() for test, channel in channels.items()}
        task = {"solution": solution, "problem": dict(problem), "channels": numbers}
        command = programs.function(
            "scoring.humaneval.verdict:judge",
            stdin=json.dumps(task).encode(),
            limits=_LIMITS,
            writable=_LOCKS,
            channels=[*channels.values()],
        )
        return programs.run(command)


def _verdicts(outcome: Outcome) -> dict[str, Any]:
    if outcome.status != "ok":
        return {}
    verdicts: dict[str, Any] = json.loads(outcome.stdout.splitlines()[-1])
    return verdicts
