"""One answer, sanitised and tested by EvalPlus; `humaneval` runs this module in the sandbox.

Standard input is `{"raw": PROGRAM OR MARKDOWN, "problem": {…}}`. Standard output is a line as soon
as there is more to say, each with all that is known: `solution`, the sanitised program; then, of a
problem of EvalPlus's, `base`, and if that is true `plus`: whether these tests pass.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import sys
from typing import Any


def main() -> None:
    """Answer one task."""
    task = json.load(sys.stdin)
    problem = task["problem"]
    known: dict[str, Any] = {"solution": _sanitised(task["raw"], problem["entry_point"])}
    _say(known)
    for tests in ("base", "plus") if "plus_input" in problem else ():
        known[tests] = _passes(known["solution"], problem, tests)
        _say(known)
        if not known[tests]:
            break


def _say(known: dict[str, Any]) -> None:
    # On a line of its own, whatever a solution may have written.
    print("\n" + json.dumps(known), flush=True)


def _sanitised(raw: str, entry_point: str) -> str:
    from evalplus.sanitize import sanitize

    try:
        return str(sanitize(raw, entry_point))
    except (ValueError, RecursionError):  # null bytes and lone surrogates; too deep a nesting
        return raw


def _passes(solution: str, problem: dict[str, Any], tests: str) -> bool:
    # The sandbox limits the memory. A limit that EvalPlus may not set, it reads as a failed test.
    os.environ["EVALPLUS_MAX_MEMORY_BYTES"] = "-1"
    from evalplus.eval import PASS, untrusted_check
    from evalplus.gen.util import trusted_exec

    # EvalPlus counts on it, and the other ways need sockets.
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
