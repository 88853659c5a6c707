"""Which level of containment programs get, and what is left when a part of it is killed."""

import fcntl
import os
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from containing.unprivileged import as_nobody
from processes import processes_with, wait_until
from sandbox_levels import EVERY_LEVEL

from copyspec_eval.errors import OptionError
from copyspec_eval.sandbox import programs
from copyspec_eval.sandbox.commands import LANDLOCK, LEVELS, LIMITS, Outcome
from copyspec_eval.sandbox.process import Watch
from copyspec_eval.sandbox.programs import run_program

LINUX = pytest.mark.skipif(sys.platform != "linux", reason="NOT TESTED: /proc and calls of Linux")


@pytest.fixture
def works(monkeypatch):
    """Makes this a machine where only these levels work."""
    fails = Outcome("killed", "", "cannot start: no bwrap")

    def works(*levels):
        outcomes = dict.fromkeys(levels, Outcome("ok", "", ""))
        monkeypatch.setattr(programs, "trial", lambda level: outcomes.get(level, fails))

    monkeypatch.delenv(programs.VARIABLE, raising=False)
    return works


def test_the_best_level_is_taken_and_the_weakest_only_if_it_is_asked_for(works, monkeypatch):
    works(LANDLOCK, LIMITS)
    assert programs.level() == LANDLOCK
    works(LIMITS)
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
def test_other_names_are_refused(works, monkeypatch, name, message):
    works(LIMITS)
    monkeypatch.setenv(programs.VARIABLE, name)
    with pytest.raises(OptionError, match=f"COPYSPEC_SANDBOX{re.escape(message)}"):
        programs.level()


def ended() -> int:
    """The number of a process that was."""
    process = subprocess.Popen(["/bin/true"])
    process.wait()
    return process.pid


RUN = """
import sys
from copyspec_eval.sandbox.programs import run_program
print(run_program(sys.argv[1]).status)
"""


def running_in(folder: Path, source: str) -> subprocess.Popen[str]:
    """A process that runs a program at a level that needs a folder of the machine for it."""
    variables = os.environ | {"TMPDIR": str(folder), programs.VARIABLE: "limits"}
    command = [sys.executable, "-c", RUN, source]
    return subprocess.Popen(command, env=variables, stdout=subprocess.PIPE, text=True)


@pytest.mark.parametrize("user", [list, as_nobody], ids=["this-user", "nobody"])
@EVERY_LEVEL
@LINUX
def test_the_process_that_runs_programs_stays_as_it_was(level, user):
    program = (
        "import ctypes; from copyspec_eval.sandbox.programs import run_program\n"
        "print(run_program('print(1)').status, ctypes.CDLL(None).prctl(3, 0, 0, 0, 0))\n"
        "print('COPYSPEC_SANDBOX' in open('/proc/self/environ').read())"
    )
    variables = (f"{programs.VARIABLE}={level.name}", f"PYTHONPATH={':'.join(sys.path)}")
    command = user(["env", *variables, sys.executable, "-c", program])
    if command is None:
        pytest.skip("NOT TESTED: no user without rights can be made here")
    done = subprocess.run(command, capture_output=True, text=True, cwd="/", check=False)
    if "does not work on this machine" in done.stderr:
        pytest.skip("NOT TESTED: this level does not work for a user without rights")
    assert done.stdout.split() == ["ok", "1", "True"], done.stderr


@LINUX
def test_folders_of_a_killed_run_are_removed_by_the_next(tmp_path):
    killed = running_in(tmp_path, "import os, time; os.makedirs('a/b'); time.sleep(60)")
    wait_until(lambda: len([*tmp_path.glob("*/a/b")]) == 1)
    killed.kill()
    killed.wait()
    [left] = tmp_path.iterdir()
    assert running_in(tmp_path, "print(1)").communicate()[0] == "ok\n"
    assert not left.exists()


@LINUX
def test_folders_of_others_stay(tmp_path):
    name = f"copyspec-program-{ended()}"
    elsewhere, folder = tmp_path / "elsewhere", tmp_path / name
    locked = tmp_path / f"{name}-locked"  # by a process of another container
    link, file, foreign = (tmp_path / f"{name}-{kind}" for kind in ("link", "file", "foreign"))
    for path in (elsewhere, folder, locked, foreign):
        path.mkdir()
    for path in (elsewhere / "file", file):
        path.write_text("here")
    link.symlink_to(elsewhere)
    stay = [elsewhere, folder, locked, link, file]
    if os.geteuid() == 0:
        os.chown(foreign, 54321, -1)
        stay.append(foreign)
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
@LINUX
def test_a_program_ends_if_what_watches_it_is_killed(level, monkeypatch):
    """Without a namespace nothing but this process is left to end it."""
    monkeypatch.setenv(programs.VARIABLE, level.name)
    marker = f"unwatched-{os.getpid()}-{level.name}"
    source = f"""
import subprocess, sys
subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)", {marker!r}]).wait()
"""
    watches: list[Watch] = []
    wait = Watch.outcome

    def outcome(watch):
        watches.append(watch)
        return wait(watch)

    monkeypatch.setattr(Watch, "outcome", outcome)
    with ThreadPoolExecutor(1) as pool:
        outcome_then = pool.submit(run_program, source)
        wait_until(lambda: bool(processes_with(f"time.sleep(60)\0{marker}")))
        watches[0].process.kill()
        assert outcome_then.result().status == "killed"
    wait_until(lambda: not processes_with(marker))
