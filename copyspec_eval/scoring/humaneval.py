"""Tests solutions to HumanEval's problems in the sandbox.

Nothing runs in this process: EvalPlus forks and limits the memory of its own process, so correct
solutions would fail in one that holds a model.
"""

from __future__ import annotations

import json
import logging
import os
import secrets
import sys
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from tqdm import tqdm

from copyspec_eval.scoring import sandbox
from copyspec_eval.scoring.sandbox import Limits

logger = logging.getLogger("lm_eval.copyspec")

Problem = Mapping[str, Any]
"""A row of EvalPlus's HumanEval+, or of OpenAI's HumanEval, which has `test` instead of inputs."""

# EvalPlus stops each of its two sets of tests after a minute, and allows as much memory.
WORKER_LIMITS = Limits(
    wall_seconds=240, cpu_seconds=240, memory_bytes=4 * 2**30, output_bytes=2**20
)


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
    """`score_solution` of each raw answer and its problem, in parallel, with a progress bar."""
    sandbox.announce()
    # As EvalPlus does: its limits are of wall time, so solutions must not share a processor.
    with ThreadPoolExecutor(max(1, (os.cpu_count() or 1) // 2)) as pool:
        scored = pool.map(score_solution, *zip(*answers, strict=True)) if answers else ()
        return list(tqdm(scored, "Scoring solutions", len(answers), unit="solution"))


def score_solution(raw: str, problem: Problem) -> ScoredSolution:
    """Sanitise and test the program in `raw`.

    Args:
        raw: an answer in Markdown, or the problem's prompt followed by a completion.
        problem: the problem that it should solve.
    """
    result = _worker_result(raw, problem)
    solution = str(result.get("solution", raw))
    if "plus_input" not in problem:
        return ScoredSolution(solution, passes_base(solution, problem), None)
    base = result.get("base") is True
    return ScoredSolution(solution, base, base and result.get("plus") is True)


def passes_base(solution: str, problem: Problem) -> bool:
    """Whether `solution` passes the `test` of a row of OpenAI's HumanEval.

    As in its own harness, the solution can use the prompt's imports and helper functions, and the
    standard library.
    """
    # Printed last: a solution that exits before its tests has not passed them.
    done = secrets.token_hex(16)
    check = f"check({problem['entry_point']})\nprint('\\n{done}')"
    program = "\n".join((problem["prompt"], solution, problem["test"], check))
    return sandbox.run_program(program).stdout.rstrip().endswith(done)


def as_samples(solutions: Iterable[tuple[str, str]]) -> str:
    """`(task_id, program)` pairs in the format of `evalplus.evaluate --samples`, one per line."""
    rows = ({"task_id": task_id, "solution": program} for task_id, program in solutions)
    return "".join(json.dumps(row) + "\n" for row in rows)


def _worker_result(raw: str, problem: Problem) -> dict[str, Any]:
    """What the worker wrote, without verdicts if it did not end well; empty if it wrote nothing.

    The solution is that of its first line, before any of it ran; the verdicts are on its last.
    """
    worker = (sys.executable, "-I", "-m", "copyspec_eval.scoring.humaneval_worker")
    task = json.dumps({"raw": raw, "problem": dict(problem)}).encode()
    outcome = sandbox.run(worker, task, WORKER_LIMITS, sandbox.INSTALLED)
    # A wrong solution does not end the worker; what does end it may not be the solution's fault.
    if outcome.status != "ok":
        message = "%s: tests did not finish, counted as failed (%s)"
        logger.warning(message, problem["task_id"], outcome.reason)
    written = [_read(line) for line in outcome.stdout.splitlines() if line]
    if not written:
        return {}
    verdicts = written[-1] if outcome.status == "ok" else {}
    return verdicts | {"solution": written[0].get("solution", raw)}


def _read(line: str) -> dict[str, Any]:
    try:
        result = json.loads(line)
    except (ValueError, RecursionError):
        return {}
    return result if isinstance(result, dict) else {}
