"""Scores answers to HumanEval's problems.

Nothing runs in this process: EvalPlus forks and limits the memory of its own process, so correct
solutions would fail in one that holds a model.
"""

from __future__ import annotations

import json
import logging
import os
import socket
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tqdm import tqdm

from copyspec_eval.sandbox import choice, programs
from copyspec_eval.sandbox.commands import Command, Limits

logger = logging.getLogger("lm_eval.copyspec")

Problem = Mapping[str, Any]
"""A row of EvalPlus's HumanEval+, or of OpenAI's HumanEval, which has `test` instead of inputs."""

# EvalPlus stops each of its two sets of tests after a minute, and allows as much memory.
_LIMITS = Limits(wall_seconds=240, cpu_seconds=240, memory_bytes=4 * 2**30, output_bytes=2**20)
# Of the `multiprocessing` that EvalPlus uses.
_LOCKS = (Path("/dev/shm"),)
_SANITISER_SECONDS = 60
_SANITISED_BYTES = 2**28


@dataclass(frozen=True, slots=True)
class ScoredSolution:
    """A tested answer.

    Attributes:
        solution: the program that was tested, as sanitised by EvalPlus; the raw answer if that
            failed.
        base: whether it passes HumanEval's tests.
        plus: whether it passes these and the tests that EvalPlus adds; None if there are none.
    """

    solution: str
    base: bool
    plus: bool | None


def score_all(answers: Sequence[tuple[str, Problem]]) -> list[ScoredSolution]:
    """Sanitise and test the program in each answer, in parallel, with a progress bar.

    Args:
        answers: each in Markdown, or its problem's prompt followed by a completion; and the
            problem that it should solve.
    """
    choice.announce()
    solutions = sanitised([(raw, problem["entry_point"]) for raw, problem in answers])
    problems = [problem for _, problem in answers]
    # As EvalPlus does: its limits are of wall time, so solutions must not share a processor.
    with ThreadPoolExecutor(max(1, (os.cpu_count() or 1) // 2)) as pool:
        scored = pool.map(score_solution, solutions, problems)
        return list(tqdm(scored, "Scoring solutions", len(answers), unit="solution"))


def score_solution(solution: str, problem: Problem) -> ScoredSolution:
    """Test a program that is sanitised already."""
    passed = _verdicts(solution, problem)
    base = passed.get("base") is True
    has_plus = "plus_input" in problem
    return ScoredSolution(solution, base, passed.get("plus") is True if has_plus else None)


def sanitised(answers: Sequence[tuple[str, str]]) -> list[str]:
    """The programs in answers with the names of their functions; an answer itself if that fails.

    The one that the sanitiser ends at, or that takes it a minute, is the first of the next attempt;
    if that gets nowhere either, it has failed.
    """
    sources: list[str] = []
    limits = Limits(
        _SANITISER_SECONDS, _SANITISER_SECONDS, _LIMITS.memory_bytes, output_bytes=_SANITISED_BYTES
    )
    while len(sources) < len(answers):
        rest = answers[len(sources) :]
        task = json.dumps(rest).encode()
        outcome = programs.run(Command(_module("sanitiser"), task, limits, programs.INSTALLED))
        lines = outcome.stdout.splitlines()
        whole = lines if outcome.stdout.endswith("\n") else lines[:-1]
        sources += [str(json.loads(line)) for line in whole]
        if not whole:
            logger.warning("an answer is tested as it is: EvalPlus's sanitiser: %s", outcome.reason)
            sources.append(rest[0][0])
    return sources


def as_samples(solutions: Iterable[tuple[str, str]]) -> str:
    """`(task_id, program)` pairs in the format of `evalplus.evaluate --samples`, one per line."""
    rows = ({"task_id": task_id, "solution": program} for task_id, program in solutions)
    return "".join(json.dumps(row) + "\n" for row in rows)


def _verdicts(solution: str, problem: Problem) -> dict[str, Any]:
    """Which tests a solution passes; empty if the process that judges it did not end well."""
    tests = ("base", "plus") if "plus_input" in problem else ("base",)
    with ExitStack() as stack:
        channels = {test: stack.enter_context(_solution_process()) for test in tests}
        numbers = {test: channel.fileno() for test, channel in channels.items()}
        task = {"solution": solution, "problem": dict(problem), "channels": numbers}
        command = Command(
            _module("verdict"),
            json.dumps(task).encode(),
            _LIMITS,
            programs.INSTALLED,
            _LOCKS,
            [*channels.values()],
        )
        outcome = programs.run(command)
    # A wrong solution does not end that process; what does end it may not be the solution's fault.
    if outcome.status != "ok":
        message = "%s: tests did not finish, counted as failed (%s)"
        logger.warning(message, problem["task_id"], outcome.reason)
        return {}
    verdicts: dict[str, Any] = json.loads(outcome.stdout.splitlines()[-1])
    return verdicts


@contextmanager
def _solution_process() -> Iterator[socket.socket]:
    """A process that waits for a solution on the other end of this socket."""
    ours, theirs = socket.socketpair()
    arguments = [*_module("solution"), str(theirs.fileno())]
    command = Command(arguments, b"", _LIMITS, programs.INSTALLED, channels=[theirs])
    with ours, theirs, programs.running(command):
        yield ours


def _module(name: str) -> list[str]:
    return [sys.executable, "-I", "-m", f"copyspec_eval.scoring.humaneval.{name}"]
