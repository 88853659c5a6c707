"""MBPP as EvalPlus asks and tests it."""

import gzip
import json
from pathlib import Path
from typing import Any

import pytest
from scripted_lm import Scripted, figures

from copyspec_eval.harness.reference_prompts import stops

COMMON: dict[str, Any] = {"contract": "", "assertion": "", "atol": 0}
ROWS: list[dict[str, Any]] = [
    COMMON
    | {
        "task_id": "Mbpp/2",
        "prompt": '"""\nWrite a function to find what two tuples share.\n"""\n',
        "canonical_solution": "\ndef similar_elements(a, b):\n    return tuple(set(a) & set(b))\n",
        "entry_point": "similar_elements",
        # As tuples, of which JSON has none.
        "base_input": [[[3, 4, 5], [5, 4, 7]]],
        "plus_input": [[[], [1]], [[1, 2], [2, 1]]],
    },
    COMMON
    | {
        "task_id": "Mbpp/252",
        "prompt": '"""\nWrite a function to convert complex numbers to polar ones.\n"""\n',
        "canonical_solution": "\nimport cmath\ndef convert(z):\n    return cmath.polar(z)\n",
        "entry_point": "convert",
        "base_input": [["(1+0j)"]],
        "plus_input": [["(3+4j)"]],
        "atol": 1e-6,
    },
]
SHARED = "```python\ndef similar_elements(a, b):\n    return tuple(x for x in a if x in b)\n```"
LIST = "```python\ndef similar_elements(a, b):\n    return [1] if a == [] else a + b\n```"
POLAR = "```python\nimport cmath\ndef convert(number):\n    return cmath.polar(number)\n```"
REAL = "```python\ndef convert(number):\n    return (number.real, 0.0)\n```"


@pytest.fixture(autouse=True)
def problems(local_data: Path) -> None:
    (local_data / "mbpp").mkdir()
    text = "".join(json.dumps(row) + "\n" for row in ROWS)
    (local_data / "mbpp" / "MbppPlus.jsonl.gz").write_bytes(gzip.compress(text.encode()))


@pytest.mark.parametrize(
    ("answers", "base", "plus"), [((SHARED, POLAR), 1, 1), ((LIST, REAL), 0.5, 0)]
)
def test_right_programs_pass_and_wrong_ones_do_not(answers, base, plus):
    """The order of what two tuples share is free, and inputs are tuples and complex numbers."""
    lm = Scripted(*answers)
    scores = figures(lm, "mbpp_evalplus", apply_chat_template=True)
    assert (scores["pass@1_base"], scores["pass@1_plus"]) == (base, plus)
    assert lm.asked[0][0].startswith("<user>Write a self-contained Python script")


def test_prompts():
    lm = Scripted("def similar_elements(a, b):\n    return tuple(set(a) & set(b))", "")
    assert figures(lm, "mbpp_evalplus")["pass@1_base"] == 0.5
    assert lm.asked[0][0] == ROWS[0]["prompt"]
    assert lm.asked[0][1]["until"] == stops("mbpp")
    lm = Scripted(SHARED, POLAR)
    figures(lm, "mbpp_evalplus_paper", apply_chat_template=True, predict_only=True)
    assert lm.asked[0][0].endswith("```python\n")
