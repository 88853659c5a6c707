"""Each of the hostile programs is refused what it tries, at every level that works here."""

import subprocess
import sys

import pytest
from containing import table
from containing.programs import LEVELS, REFUSED, ROOT, outcomes, outcomes_as_nobody, programs
from sandbox_levels import WORKING

from copyspec_eval.sandbox.programs import VARIABLE

TABLE = (ROOT / "results" / "CONTAINMENT.md").read_text()
CELLS = table.cells(TABLE)
BEYOND_LANDLOCK = {"files/size_of_secrets", "files/fill_disk"}
"""As the level itself says."""
WEAKEST = pytest.param(LEVELS[-1], marks=pytest.mark.slow)


@pytest.mark.parametrize("level", [*LEVELS[:-1], WEAKEST])
@pytest.mark.parametrize(
    "outcomes", [outcomes, pytest.param(outcomes_as_nobody, marks=pytest.mark.slow)]
)
def test_what_a_hostile_program_tries_is_refused(outcomes, level, monkeypatch):
    """None was done though the table says that it is refused, or failed in another way."""
    if level not in [working.name for working in WORKING]:
        pytest.skip(f"NOT TESTED: containment by {level} does not work on this machine")
    if sys.platform != "linux":
        pytest.skip("NOT TESTED: this system has no filter of system calls")
    monkeypatch.setenv(VARIABLE, level)  # set by `outcomes`; undone here
    actual = outcomes(level)
    if actual is None:
        pytest.skip("NOT TESTED: no such user can be made here, or the level does not work for one")
    allowed = {name: {REFUSED, CELLS[name].get(level)} for name in actual}
    assert {name: each for name, each in actual.items() if each not in allowed[name]} == {}


def test_the_table_and_its_summary_have_every_program_and_level():
    assert {program.kind for program in programs()} == {
        *("files", "kernel", "memory", "network", "processes")
    }
    assert [*CELLS] == [program.name for program in programs()], "run scripts/containment"
    assert all(f"| {program.name} | {program.tries} |" in TABLE for program in programs())
    assert all(program.tries.endswith(".") for program in programs())
    assert all([*row] == [*LEVELS] for row in CELLS.values())
    page = (ROOT / "docs" / "tasks.md").read_text()
    assert "\n".join(table.summary(TABLE)) in page, "run scripts/containment"


def test_only_the_weakest_level_lets_any_of_them_through():
    for name, row in CELLS.items():
        let_through = {level for level in LEVELS[:-1] if row[level] != REFUSED}
        assert let_through <= ({"landlock"} if name in BEYOND_LANDLOCK else set()), name


@pytest.mark.skipif(sys.platform != "linux", reason="NOT TESTED: these are calls of Linux")
@pytest.mark.parametrize("name", ["files_in_memory", "signal_by_owner", "sockets", "watch_files"])
def test_outside_the_sandbox_a_program_succeeds(name):
    """So a refusal is the sandbox's doing; others need a kernel or rights that not all have."""
    [source] = [program.source for program in programs() if program.name.endswith(f"/{name}")]
    done = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True)
    assert done.stdout == "done\n", done.stderr
