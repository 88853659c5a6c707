"""A report of many runs takes neither long nor much memory."""

import os
import subprocess
import sys
from pathlib import Path
from time import perf_counter

import pytest
from recorded_runs import manifest, turn, write_run

from copyspec_eval.records import SpanCharacters
from copyspec_eval.types import Attempt

RUNS, DOCUMENTS = 50, 250
SECONDS, BYTES = 30, 1e9

# As long as answers of MT-Bench: 2,000 characters each, and a draft every few tokens.
PROMPT = "What is asked in a prompt of some length? " * 60
PIECE = "a piece of the answer, "
PLACES = tuple(
    SpanCharacters(start // 2, start // 2 + len(PIECE), start, start + len(PIECE))
    for start in range(0, 2000, 46)
)
TOKENS = tuple(range(500))
ATTEMPTS = tuple(Attempt(10, accepted % 11) for accepted in range(100))


@pytest.mark.slow
def test_fifty_runs_of_five_hundred_turns(tmp_path):
    folders = []
    for number in range(RUNS):
        run = f"run{number:02}"
        rows = [
            turn(
                run,
                document,
                turn_number,
                seed=number,
                drafter=("copyspec", "suffix")[number % 2],
                prompt=f"{document} {PROMPT}",
                span_characters=PLACES,
                answer=PIECE * len(PLACES) + f"{run} {document}",
                text=f"{run} {document} " + PIECE * 2 * len(PLACES),
                token_ids=TOKENS,
                attempts=ATTEMPTS,
            )
            for document in range(DOCUMENTS)
            for turn_number in (1, 2)
        ]
        model = f"model{number // 2}"
        folders.append(write_run(tmp_path / run, rows, manifest(run, model=model)))

    program = Path(sys.executable).parent / "copyspec-eval"
    command: list[str | Path] = [program, "report", *folders, "--out", tmp_path / "out"]
    started = perf_counter()
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    _, status, used = os.wait4(process.pid, 0)
    seconds, size = perf_counter() - started, used.ru_maxrss * 1024
    page = (tmp_path / "out" / "report.html").stat().st_size
    print(f"{seconds:.1f} s, {size / 1e6:.0f} MB; the page has {page / 1e6:.1f} MB")
    assert status == 0
    assert seconds < SECONDS
    assert size < BYTES
    assert page < 10e6
