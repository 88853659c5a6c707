"""A report of many runs takes neither long nor much memory."""

import os
import subprocess
import sys
from pathlib import Path
from time import perf_counter
from typing import Any

import pytest
from recorded_runs import recorded_run, turn

from copyspec_eval.records import SpanCharacters
from copyspec_eval.types import Attempt

PIECE = "a piece of the answer, "


@pytest.mark.slow
def test_fifty_runs_of_five_hundred_turns(tmp_path):
    """As long as answers of MT-Bench: 2,000 characters each, and a draft every few tokens."""
    places = tuple(
        SpanCharacters(start // 2, start // 2 + len(PIECE), start, start + len(PIECE))
        for start in range(0, 2000, 46)
    )
    attempts = tuple(Attempt(10, accepted % 11) for accepted in range(100))
    made: dict[str, Any] = {"span_characters": places, "attempts": attempts}
    made["token_ids"] = tuple(range(500))

    def texts(run: str, place: int) -> dict[str, str]:
        prompt = f"{place} " + "What is asked in a prompt of some length? " * 60
        answer, end = PIECE * len(places), f"{run} {place} "
        return {"prompt": prompt, "answer": answer + end, "text": end + 2 * answer}

    folders = []
    for number in range(50):
        run, drafter = f"run{number:02}", ("copyspec", "suffix")[number % 2]
        rows = [
            turn(
                run, place // 2, place % 2 + 1, number, drafter=drafter, **texts(run, place), **made
            )
            for place in range(500)
        ]
        folders.append(recorded_run(tmp_path / run, run, rows, model=f"model{number // 2}"))

    program = Path(sys.executable).parent / "copyspec-eval"
    command: list[str | Path] = [program, "report", *folders, "--out", tmp_path / "out"]
    started = perf_counter()
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    _, status, used = os.wait4(process.pid, 0)
    assert status == 0
    assert perf_counter() - started < 30
    assert used.ru_maxrss * 1024 < 1e9
    assert (tmp_path / "out" / "report.html").stat().st_size < 10e6
