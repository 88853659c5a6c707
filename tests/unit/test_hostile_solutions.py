"""What an answer to a HumanEval problem does to be taken for right."""

from __future__ import annotations

import json
from typing import Any

from copyspec_eval.scoring.humaneval import score_solution

PROBLEM: dict[str, Any] = {
    "task_id": "HumanEval/0",
    "prompt": "def total(numbers):\n    '''Sum.'''\n",
    "contract": "",
    "canonical_solution": "    return sum(numbers)\n",
    "entry_point": "total",
    "base_input": [[[1, 2]], [[3]]],
    "plus_input": [[[]], [[-1, -2]]],
    "atol": 0,
}


def test_a_verdict_that_a_solution_writes_does_not_count() -> None:
    """Written past Python, and then the worker that would have judged is killed."""
    forged = json.dumps({"solution": "forged", "base": True, "plus": True}) + "\n"
    answer = f"""```python
import ctypes, os

def total(numbers):
    libc = ctypes.CDLL(None)
    text = {forged.encode()!r}
    libc.write(1, text, len(text))
    libc.kill(os.getppid(), 9)
    libc._exit(0)
    return 0
```"""
    scored = score_solution(answer, PROBLEM)
    assert (scored.base, scored.plus) == (False, False)
    assert "def total" in scored.solution
