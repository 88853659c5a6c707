"""Each of the hostile programs is refused what it tries, at every level that works here."""

import os
import subprocess
import sys
from collections import Counter

import pytest
from containing import table
from containing.programs import LEVELS, REFUSED, ROOT, outcomes, outcomes_as_nobody, programs
from sandbox_levels import WORKING

from copyspec_eval.sandbox.programs import VARIABLE

TABLE = ROOT / "results" / "CONTAINMENT.md"
BEYOND_LANDLOCK = {"files/size_of_secrets", "files/fill_disk"}
"""As the level itself says."""
HERE = [level.name for level in WORKING]

ALL = [*LEVELS[:-1], pytest.param(LEVELS[-1], marks=pytest.mark.slow)]


@pytest.fixture(autouse=True)
def _level(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, HERE[0])  # set by `outcomes`; undone here


@pytest.mark.parametrize("level", ALL)
def test_what_a_hostile_program_tries_is_refused(level: str) -> None:
    _skip_unless_it_works(level)
    assert unlike_the_table(level, outcomes(level)) == {}


@pytest.mark.slow
@pytest.mark.parametrize("level", LEVELS)
def test_it_is_refused_a_user_without_rights(level: str) -> None:
    _skip_unless_it_works(level)
    actual = outcomes_as_nobody(level)
    if actual is None:
        pytest.skip("NOT TESTED: no such user can be made here, or the level does not work for one")
    assert unlike_the_table(level, actual) == {}


def _skip_unless_it_works(level: str) -> None:
    if level not in HERE:
        pytest.skip(f"NOT TESTED: containment by {level} does not work on this machine")
    if sys.platform != "linux":
        pytest.skip("NOT TESTED: this system has no filter of system calls")


def unlike_the_table(level: str, actual: dict[str, str]) -> dict[str, str]:
    """What was done though the table says that it is refused, or failed in another way."""
    wanted = table.cells(TABLE.read_text())
    return {
        name: outcome
        for name, outcome in actual.items()
        if outcome != REFUSED and outcome != wanted[name].get(level, REFUSED)
    }


def test_the_table_has_every_program_and_level() -> None:
    text = TABLE.read_text()
    assert [*table.cells(text)] == [program.name for program in programs()], (
        "run scripts/containment"
    )
    assert all(f"| {program.name} | {program.tries} |" in text for program in programs())
    assert all([*row] == [*LEVELS] for row in table.cells(text).values())


def test_only_the_weakest_level_lets_any_of_them_through() -> None:
    for name, row in table.cells(TABLE.read_text()).items():
        let_through = {level for level in LEVELS[:-1] if row[level] != REFUSED}
        assert let_through <= ({"landlock"} if name in BEYOND_LANDLOCK else set()), name


def test_the_page_of_tasks_has_the_summary() -> None:
    lines = table.summary(TABLE.read_text())
    assert "\n".join(lines) in (ROOT / "docs" / "tasks.md").read_text(), "run scripts/containment"


def test_each_program_says_what_it_tries() -> None:
    for program in programs():
        assert program.tries.endswith("."), program.name
        assert "\n" not in program.tries, program.name
        assert "|" not in program.tries, program.name


def test_there_are_many_of_every_kind() -> None:
    kinds = Counter(program.kind for program in programs())
    assert kinds.keys() == {"files", "kernel", "memory", "network", "processes"}
    assert min(kinds.values()) >= 8
    assert kinds.total() >= 80


@pytest.mark.skipif(sys.platform != "linux", reason="NOT TESTED: these are calls of Linux")
def test_outside_the_sandbox_most_of_them_succeed() -> None:
    """So a refusal is the sandbox's doing; some need a kernel or rights that not all have."""
    sources = {program.name.partition("/")[2]: program.source for program in programs()}
    for name in ("ask_to_be_traced", "file_in_memory", "signal_by_owner", "socket_unix"):
        done = subprocess.run(
            [sys.executable, "-c", sources[name]], capture_output=True, text=True, check=False
        )
        assert done.stdout == "done\n", (name, done.stderr, os.getuid())
