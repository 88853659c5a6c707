"""Each of the hostile programs is refused what it tries, at every level that works here."""

from __future__ import annotations

import ast
import os
import sys
from pathlib import Path

import pytest

from copyspec_eval.scoring import sandbox
from copyspec_eval.scoring.sandbox import run_all

PROGRAMS = sorted((Path(__file__).parents[1] / "hostile_programs").glob("*.py"))
LEVELS = ("bubblewrap", "namespaces", "limits")


@pytest.mark.parametrize("name", LEVELS)
def test_what_a_hostile_program_tries_is_refused(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    levels = {level.name: level for level in sandbox.levels()}
    if name not in levels:
        pytest.skip(f"NOT TESTED: containment by {name} does not work on this machine")
    if "use the network" in levels[name].description:
        pytest.skip("NOT TESTED: this machine has no filter of system calls, and reports it")
    monkeypatch.setattr(sandbox, "level", lambda: levels[name])
    sources = [program.read_text() for program in PROGRAMS]
    did = {
        program.stem: (outcome.status, outcome.stdout.strip())
        for program, outcome in zip(PROGRAMS, run_all(sources), strict=True)
    }
    assert did == dict.fromkeys(did, ("ok", "refused"))
    assert len(did) >= 20


def test_each_program_says_what_it_tries() -> None:
    for program in PROGRAMS:
        described = ast.get_docstring(ast.parse(program.read_text()))
        assert described, program
        assert described.endswith("."), program
        assert "\n" not in described, program


@pytest.mark.skipif(sys.platform != "linux", reason="NOT TESTED: these are calls of Linux")
def test_outside_the_sandbox_most_of_them_succeed() -> None:
    """So a refusal is the sandbox's doing; some need a kernel or rights that not all have."""
    import subprocess

    tried = ("ask_to_be_traced", "file_in_memory", "signal_by_owner", "socket_unix")
    for name in tried:
        program = next(path for path in PROGRAMS if path.stem == name)
        done = subprocess.run([sys.executable, program], capture_output=True, text=True)
        assert done.stdout == "done\n", (name, done.stderr, os.getuid())
