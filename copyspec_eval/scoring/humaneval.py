"""What solutions to HumanEval's problems are worth: run against their tests, in the sandbox.

Nothing runs in this process. EvalPlus sets limits on the memory of the process that it runs in,
and forks; in one that holds a model, correct solutions would fail.
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

# EvalPlus gives up on a set of tests after a minute, and there are two; it grants as much memory.
WORKER_LIMITS = Limits(
    wall_seconds=240, cpu_seconds=240, memory_bytes=4 * 2**30, output_bytes=2**20
)


@dataclass(frozen=True, slots=True)
class Verdict:
    """What became of one answer.

    Attributes:
        solution: the program that was tested, as EvalPlus sanitises it; the raw one where it could
            not be.
        base: whether it passes the tests of HumanEval.
        plus: whether it passes these and the tests that EvalPlus adds; None if there are none.
    """

    solution: str
    base: bool
    plus: bool | None


def judge_all(answers: Sequence[tuple[str, Problem]]) -> list[Verdict]:
    """`judge` of every raw answer and its problem, side by side, with a progress bar."""
    sandbox.announce()
    # As EvalPlus: its limits are of wall time, so no two solutions may wait for one processor.
    with ThreadPoolExecutor(max(1, (os.cpu_count() or 1) // 2)) as pool:
        verdicts = pool.map(judge, *zip(*answers, strict=True)) if answers else ()
        return list(tqdm(verdicts, "Scoring solutions", len(answers), unit="solution"))


def judge(raw: str, problem: Problem) -> Verdict:
    """Sanitise and test the program in `raw`.

    Args:
        raw: an answer in Markdown; or the problem's prompt with a completion.
        problem: what it is to solve.
    """
    found = _evaluated(raw, problem)
    solution = str(found.get("solution", raw))
    if "plus_input" not in problem:
        return Verdict(solution, passes_base(solution, problem), None)
    base = found.get("base") is True
    return Verdict(solution, base, base and found.get("plus") is True)


def passes_base(solution: str, problem: Problem) -> bool:
    """Whether `solution` passes the `test` of a row of OpenAI's HumanEval.

    As with its own harness, the prompt's imports and helper functions are there, and the standard
    library.
    """
    # Told at the end, since a solution that exits before its tests has not passed them.
    done = secrets.token_hex(16)
    check = f"check({problem['entry_point']})\nprint('\\n{done}')"
    program = "\n".join((problem["prompt"], solution, problem["test"], check))
    return sandbox.run_program(program).stdout.rstrip().endswith(done)


def as_samples(solutions: Iterable[tuple[str, str]]) -> str:
    """`(task_id, program)` pairs in the format of `evalplus.evaluate --samples`, one a line."""
    rows = ({"task_id": task_id, "solution": program} for task_id, program in solutions)
    return "".join(json.dumps(row) + "\n" for row in rows)


def _evaluated(raw: str, problem: Problem) -> dict[str, Any]:
    """What the worker wrote last; nothing, if it was stopped before."""
    worker = (sys.executable, "-I", "-m", "copyspec_eval.scoring.humaneval_worker")
    task = json.dumps({"raw": raw, "problem": dict(problem)}).encode()
    outcome = sandbox.run(worker, task, WORKER_LIMITS, sandbox.INSTALLED)
    # A wrong solution does not end the worker; what does may be no fault of the solution's.
    if outcome.status != "ok":
        what = "%s: not tested to its end, so it counts as failed (%s)"
        logger.warning(what, problem["task_id"], outcome.reason)
    lines = outcome.stdout.splitlines()
    try:
        found = json.loads(lines[-1]) if lines else {}
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}
