"""MBPP as EvalPlus asks and tests it."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import lm_eval
import pytest
from lm_eval.tasks import TaskManager
from scripted_lm import Scripted

from copyspec_eval.errors import DataError
from copyspec_eval.harness.humaneval import MbppTask
from copyspec_eval.harness.reference_prompts import stops
from copyspec_eval.paths import tasks_dir

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
        "canonical_solution": (
            "\nimport cmath\n\ndef convert(number):\n    return cmath.polar(number)\n"
        ),
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


@pytest.fixture
def evaluate(local_data: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    (local_data / "mbpp").mkdir()
    text = "".join(json.dumps(row) + "\n" for row in ROWS)
    (local_data / "mbpp" / "MbppPlus.jsonl.gz").write_bytes(gzip.compress(text.encode()))
    monkeypatch.setattr("lm_eval.evaluator.add_env_info", lambda results: None)
    manager = TaskManager(include_path=[tasks_dir()], include_defaults=False)

    def run(lm: Scripted, task: str = "mbpp_evalplus", **options: Any) -> dict[str, float]:
        settings: dict[str, Any] = {"apply_chat_template": True, "confirm_run_unsafe_code": True}
        results = lm_eval.simple_evaluate(
            lm, tasks=[task], task_manager=manager, **(settings | options)
        )
        figures: dict[str, float] = results["results"][task]
        return figures

    return run


def test_right_programs_pass_and_wrong_ones_do_not(evaluate: Any) -> None:
    """The order of what two tuples share is free, and inputs are tuples and complex numbers."""
    figures = evaluate(Scripted(SHARED, POLAR))
    assert (figures["pass@1_base,none"], figures["pass@1_plus,none"]) == (1, 1)
    figures = evaluate(Scripted(LIST, REAL))
    assert (figures["pass@1_base,none"], figures["pass@1_plus,none"]) == (0.5, 0)


def test_prompts(evaluate: Any) -> None:
    lm = Scripted(SHARED, POLAR)
    evaluate(lm)
    assert lm.asked[0][0].startswith("<user>Write a self-contained Python script")
    lm = Scripted("def similar_elements(a, b):\n    return tuple(set(a) & set(b))", "")
    figures = evaluate(lm, apply_chat_template=False)
    assert lm.asked[0][0] == ROWS[0]["prompt"]
    assert lm.asked[0][1]["until"] == stops("mbpp")
    assert figures["pass@1_base,none"] == 0.5
    lm = Scripted(SHARED, POLAR)
    evaluate(lm, "mbpp_evalplus_paper")
    assert lm.asked[0][0].endswith("```python\n")


def test_a_missing_file_is_named(local_data: Path) -> None:
    with pytest.raises(DataError, match=r"mbpp: none of MbppPlus\.jsonl, MbppPlus\.jsonl\.gz is"):
        MbppTask({"task": "mbpp_evalplus", "test_split": "test"})
