"""Sanitises and tests one answer by EvalPlus; `humaneval` runs this module in the sandbox.

Standard input is `{"raw": PROGRAM OR MARKDOWN, "problem": {…}}`. Standard output is a JSON object
per line, each with all results so far: `solution`, the sanitised program; then, for a problem of
HumanEval+, `base`, and if that is true `plus`: whether these tests pass.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import sys
from typing import Any


def main() -> None:
    """Read one task and write its results."""
    task = json.load(sys.stdin)
    problem = task["problem"]
    result: dict[str, Any] = {"solution": _sanitised(task["raw"], problem["entry_point"])}
    _write(result)
    for tests in ("base", "plus") if "plus_input" in problem else ():
        result[tests] = _passes(result["solution"], problem, tests)
        _write(result)
        if not result[tests]:
            break


def _write(result: dict[str, Any]) -> None:
    # On a line of its own, whatever a solution may have printed.
    print("\n" + json.dumps(result), flush=True)


def _sanitised(raw: str, entry_point: str) -> str:
    from evalplus.sanitize import sanitize

    try:
        return str(sanitize(raw, entry_point))
    except (ValueError, RecursionError):  # null bytes and lone surrogates; deep nesting
        return raw


def _passes(solution: str, problem: dict[str, Any], tests: str) -> bool:
    # The sandbox limits the memory. EvalPlus takes a limit that it may not set for a failed test.
    os.environ["EVALPLUS_MAX_MEMORY_BYTES"] = "-1"
    from evalplus.eval import PASS, untrusted_check
    from evalplus.gen.util import trusted_exec

    # EvalPlus relies on fork, and the other start methods need sockets.
    multiprocessing.set_start_method("fork", force=True)
    reference = problem["prompt"] + problem["canonical_solution"]
    inputs, entry_point = problem[f"{tests}_input"], problem["entry_point"]
    expected, seconds = trusted_exec(reference, inputs, entry_point, record_time=True)
    status, _ = untrusted_check(
        "humaneval",
        solution,
        inputs,
        entry_point,
        expected=expected,
        atol=problem["atol"],
        ref_time=seconds,
        fast_check=True,
    )
    return bool(status == PASS)


if __name__ == "__main__":
    main()
