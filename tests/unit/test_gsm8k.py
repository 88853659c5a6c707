"""Programs in answers, numbers in outputs, and the three turns of the task."""

import json
import logging
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scripted_lm import Scripted, evaluated, figures

from copyspec_eval.errors import DataError
from copyspec_eval.sandbox import programs
from copyspec_eval.sandbox.commands import Outcome
from copyspec_eval.scoring.gsm8k import RIGHT, extract_program, first_number, gold_number, verdict


@pytest.mark.parametrize(
    ("answer", "program"),
    [
        ("```python\nprint(1)\n```", "print(1)\n"),
        ("a\n```python\nprint(1)\n```\nb\n```python\nprint(2)\n```\nc", "print(2)\n"),
        ("```python\nprint(1)\n```\n```python\nx = 2\n```", "print(1)\n"),
        ("```python\nprint(1)\n```\n```bash\nprint x\n```", "print(1)\n"),
        ("```python\nprint(1)", "print(1)"),
        ("```python\nprint(1)\n```\n```python\nprint(2", "print(2"),
        ("1. so:\n   ```python\n   x = 1\n   print(x)\n   ```", "x = 1\nprint(x)\n"),
        ("```python\nprint('```')\n```", "print('```')\n"),
        ("```python \nprint(1)\n```", "print(1)\n"),
        ("```python\nx = 1\n```", None),
        ("```\nprint(1)\n```", None),
        ("```python3\nprint(1)\n```", None),
        ("print(1)", None),
        ("", None),
    ],
)
def test_the_program_of_an_answer(answer, program):
    assert extract_program(answer) == program


@pytest.mark.parametrize(
    ("output", "number"),
    [
        *(("18", 18), ("18.0\n", 18), ("18.", 18), ("$1,234,567.50", 1234567.5), ("-3", -3)),
        *(("- 3", 3), (".5", 0.5), ("1e3", 1000), ("(1, 2)", 1), ("1,2", 1), ("1,2345", 1)),
        *(("Janet makes 18 dollars in 1 day", 18), ("9" * 400, float("inf"))),
        *((text, None) for text in ("٣", "none", "")),
    ],
)
def test_the_first_number(output, number):
    assert first_number(output) == number


@given(st.integers(-(10**15), 10**15), st.sampled_from(["{}", "{:,}", "it is ${:,}.", "{} of 7"]))
def test_every_whole_number_is_read_back(number, form):
    text = form.format(number)
    assert first_number(text) == number
    assert verdict(ended(text), number) == RIGHT
    assert gold_number(f"because\n#### {number:,}") == number


@given(st.text(alphabet="`python\n print()#\t", max_size=60))
def test_a_program_is_a_part_of_its_answer(answer):
    if (program := extract_program(answer)) is not None:
        assert "print" in program
        lines = " ".join(line.strip() for line in answer.split("\n"))
        assert all(line.strip() in lines for line in program.split("\n"))


def ended(output: str) -> Outcome:
    return Outcome("ok", output, "")


@pytest.mark.parametrize(
    ("outcome", "gold", "reason"),
    [
        (None, 18, "no program"),
        (ended("18\n"), 18, RIGHT),
        (ended("18.00001"), 18, RIGHT),
        (ended("0"), 0, RIGHT),
        (ended("x\n"), 18, "no number printed"),
        (ended("17, not 18"), 18, "wrong number"),
        (ended("18.0001"), 18, "wrong number"),
        (ended("0.0000001"), 0, "wrong number"),
        (ended("-18"), 18, "wrong number"),
        (Outcome("error", "18\n", "exit code 1: E"), 18, "exit code 1: E"),
        (Outcome("timeout", "18\n", "over 10 s of wall time"), 18, "over 10 s of wall time"),
    ],
)
def test_verdicts(outcome, gold, reason):
    assert verdict(outcome, gold) == reason


@given(st.text(), st.floats(allow_nan=False))
def test_any_output_has_a_verdict(output, gold):
    assert verdict(ended(output), gold) in (RIGHT, "no number printed", "wrong number")


TASK = "gsm8k_self_correction"
PROBLEMS = [{"question": f"What is {n} {{x}}?", "answer": f"so\n#### {n}"} for n in (3, 4, 5, 6)]
BLOCK = "Here:\n```python\n{}\n```".format
# Right in both turns, in the first, in the last, in none.
ANSWERS = [
    (BLOCK("print(3)"), "Fine.", BLOCK("print(3)")),
    (BLOCK("print(4)"), "Fine.", BLOCK("print(5)")),
    (BLOCK("1/0"), "Fine.", BLOCK("print('=', 5)")),
    ("six", "Fine.", None),
]


class Solver(Scripted):
    def generate_until(self, requests: Any, disable_tqdm: bool = False) -> list[Any]:
        super().generate_until(requests)
        return [ANSWERS[each.doc_id][each.turn - 1] for each in requests]


@pytest.fixture
def path(local_data: Path) -> Path:
    (local_data / "gsm8k").mkdir()
    path = local_data / "gsm8k" / "test.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in PROBLEMS))
    return path


@pytest.mark.usefixtures("path")
def test_both_programs_are_run_and_compared(caplog):
    solver = Solver()
    with caplog.at_level(logging.INFO, "lm_eval.copyspec"):
        results = evaluated(solver, TASK)
    scores = results["results"][TASK]
    assert scores["acc_turn1,none"] == scores["acc_turn3,none"] == 2 / 4
    assert scores["right_to_wrong,none"] == scores["wrong_to_right,none"] == 1 / 4
    assert scores["answered,none"] == 11 / 12
    assert results["higher_is_better"][TASK]["right_to_wrong"] is False
    samples = results["samples"][TASK]
    assert [sample["acc_turn1"] for sample in samples] == [1, 1, 0, 0]
    assert [sample["acc_turn3"] for sample in samples] == [1, 0, 1, 0]
    assert solver.asked[0][0].startswith("User: Solve this problem")
    assert "What is 3 {x}?" in solver.asked[0][0]
    assert "programs of turn 1: 2 right, 2 no program" in caplog.messages
    assert "programs of turn 3: 2 right, 1 wrong number, 1 no program" in caplog.messages


@pytest.mark.usefixtures("path")
def test_nothing_is_run_without_scores_or_leave(monkeypatch):
    monkeypatch.setattr(programs, "run_all", None)
    assert figures(Solver(), TASK, predict_only=True) == {"bypass": 999}
    with pytest.raises(ValueError, match="confirm_run_unsafe_code"):
        evaluated(Solver(), TASK, confirm_run_unsafe_code=False)


@pytest.mark.parametrize("answer", ["18", "####", "#### x"])
def test_a_problem_without_a_number_is_named(path, answer):
    path.write_text(json.dumps({"question": "Q", "answer": answer}))
    with pytest.raises(DataError) as caught:
        evaluated(Solver(), TASK)
    reason = "answer does not end in #### and a number; copy the file again"
    assert str(caught.value) == f"{path}:1: {reason}"
