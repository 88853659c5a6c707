"""Which level of containment programs get, and what is left when a part of it is killed."""

import fcntl
import os
import re
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from containing.unprivileged import as_nobody
from processes import processes_with, wait_until
from sandbox_levels import EVERY_LEVEL

from copyspec_eval.errors import OptionError
from copyspec_eval.sandbox import programs
from copyspec_eval.sandbox.commands import LANDLOCK, LEVELS, LIMITS, Level, Outcome
from copyspec_eval.sandbox.process import Watch
from copyspec_eval.sandbox.programs import run_program


def only(*working: Level) -> Callable[[Level], Outcome]:
    """Stands for `programs.trial` on a machine where only these levels work."""
    works, fails = Outcome("ok", 0, "", ""), Outcome("killed", None, "", "cannot start: no bwrap")
    return lambda level: works if level in working else fails


def test_the_best_level_is_taken_and_the_weakest_only_if_it_is_asked_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv(programs.VARIABLE, raising=False)
    monkeypatch.setattr(programs, "trial", only(LANDLOCK, LIMITS))
    assert programs.level() == LANDLOCK
    monkeypatch.setattr(programs, "trial", only(LIMITS))
    with pytest.raises(OptionError, match=r"or set COPYSPEC_SANDBOX=limits to run them .* NOT con"):
        programs.level()
    monkeypatch.setenv(programs.VARIABLE, "limits")
    assert programs.level() == LIMITS
    assert [level for level in LEVELS if "NOT contained" in level.description] == [LIMITS]


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("bubblewrap", "=bubblewrap does not work on this machine: cannot start: no bwrap"),
        ("limit", " 'limit' (did you mean 'limits'?)"),
        ("namespaces", " 'namespaces'; known: bubblewrap, landlock"),
    ],
)
def test_other_names_are_refused(monkeypatch: pytest.MonkeyPatch, name: str, message: str) -> None:
    monkeypatch.setattr(programs, "trial", only(LIMITS))
    monkeypatch.setenv(programs.VARIABLE, name)
    with pytest.raises(OptionError, match=f"COPYSPEC_SANDBOX{re.escape(message)}"):
        programs.level()


def ended() -> int:
    """The number of a process that was."""
    process = subprocess.Popen(["/bin/true"])
    process.wait()
    return process.pid


def as_root(command: list[str]) -> list[str]:
    return command


@pytest.mark.parametrize("user", [as_root, as_nobody])
@EVERY_LEVEL
@pytest.mark.skipif(sys.platform != "linux", reason="NOT TESTED: prctl is a call of Linux")
def test_the_process_that_runs_programs_stays_as_it_was(
    level: Level, user: Callable[[list[str]], list[str] | None]
) -> None:
    program = (
        "import ctypes; from copyspec_eval.sandbox.programs import run_program\n"
        "print(run_program('print(1)').status, ctypes.CDLL(None).prctl(3, 0, 0, 0, 0))\n"
        "print('COPYSPEC_SANDBOX' in open('/proc/self/environ').read())"
    )
    setting, path = f"{programs.VARIABLE}={level.name}", f"PYTHONPATH={':'.join(sys.path)}"
    command = user(["env", setting, path, sys.executable, "-c", program])
    if command is None:
        pytest.skip("NOT TESTED: no user without rights can be made here")
    done = subprocess.run(command, capture_output=True, text=True, cwd="/", check=False)
    if "does not work on this machine" in done.stderr:
        pytest.skip("NOT TESTED: this level does not work for a user without rights")
    assert done.stdout.split() == ["ok", "1", "True"], done.stderr


RUN = """
import sys, tempfile
from copyspec_eval.sandbox.programs import run_program
print(run_program(sys.argv[1]).status)
"""


def running_in(folder: Path, source: str) -> subprocess.Popen[str]:
    """A process that runs a program at a level that needs a folder of the machine for it."""
    variables = os.environ | {"TMPDIR": str(folder), programs.VARIABLE: "limits"}
    command = [sys.executable, "-c", RUN, source]
    return subprocess.Popen(command, env=variables, stdout=subprocess.PIPE, text=True)


@pytest.mark.skipif(sys.platform != "linux", reason="NOT TESTED: looks for processes in /proc")
def test_folders_of_a_killed_run_are_removed_by_the_next(tmp_path: Path) -> None:
    killed = running_in(tmp_path, "import os, time; os.makedirs('a/b'); time.sleep(60)")
    wait_until(lambda: len([*tmp_path.glob("*/a/b")]) == 1)
    killed.kill()
    killed.wait()
    [left] = tmp_path.iterdir()
    assert running_in(tmp_path, "print(1)").communicate()[0] == "ok\n"
    assert not left.exists()


@pytest.mark.skipif(sys.platform != "linux", reason="NOT TESTED: looks for processes in /proc")
def test_folders_of_others_stay(tmp_path: Path) -> None:
    name = f"copyspec-program-{ended()}"
    elsewhere = tmp_path / "elsewhere"
    stay = [elsewhere, tmp_path / f"{name}-link", tmp_path / f"{name}-file", tmp_path / name]
    elsewhere.mkdir()
    (elsewhere / "file").write_text("here")
    stay[1].symlink_to(elsewhere)
    stay[2].write_text("here")
    stay[3].mkdir()
    locked = tmp_path / f"{name}-locked"  # by a process of another container
    locked.mkdir()
    stay.append(locked)
    if os.geteuid() == 0:
        stay.append(tmp_path / f"{name}-of-another")
        stay[-1].mkdir()
        os.chown(stay[-1], 54321, -1)
    descriptor = os.open(locked, os.O_RDONLY)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    other = running_in(tmp_path, "import time; open('here', 'w').close(); time.sleep(60)")
    wait_until(lambda: len([*tmp_path.glob("*/here")]) == 1)
    assert running_in(tmp_path, "print(1)").communicate()[0] == "ok\n"
    os.close(descriptor)
    assert len([*tmp_path.glob("*/here")]) == 1
    assert all(path.exists() for path in stay)
    assert (elsewhere / "file").read_text() == "here"
    other.kill()
    other.wait()


@EVERY_LEVEL
@pytest.mark.skipif(sys.platform != "linux", reason="NOT TESTED: looks for processes in /proc")
def test_a_program_ends_if_what_watches_it_is_killed(
    level: Level, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a namespace nothing but this process is left to end it."""
    monkeypatch.setenv(programs.VARIABLE, level.name)
    marker = f"unwatched-{os.getpid()}-{level.name}"
    source = f"""
import subprocess, sys
subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)", {marker!r}]).wait()
"""
    watches: list[Watch] = []

    def outcome(watch: Watch) -> Outcome:
        watches.append(watch)
        return wait(watch)

    wait = Watch.outcome
    monkeypatch.setattr(Watch, "outcome", outcome)
    with ThreadPoolExecutor(1) as pool:
        outcome_then = pool.submit(run_program, source)
        wait_until(lambda: bool(processes_with(f"time.sleep(60)\0{marker}")))
        watches[0].process.kill()
        assert outcome_then.result().status == "killed"
    wait_until(lambda: not processes_with(marker))
