"""Which level of containment programs get, and what is left when a part of it is killed."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest
from processes import processes_with, wait_until

from copyspec_eval.errors import OptionError
from copyspec_eval.scoring.sandbox import cgroups, choice
from copyspec_eval.scoring.sandbox.commands import Limits, Outcome
from copyspec_eval.scoring.sandbox.levels import BUBBLEWRAP, LANDLOCK, LIMITS, Level
from copyspec_eval.scoring.sandbox.programs import run_program
from copyspec_eval.scoring.sandbox.watch import Watch

EVERY_LEVEL = pytest.mark.parametrize("level", choice.levels(), ids=lambda level: level.name)


def only(*working: Level) -> Callable[[Level], Outcome]:
    """Stands for `choice.trial` on a machine where only these levels work."""
    works, fails = Outcome("ok", 0, "", ""), Outcome("killed", None, "", "cannot start: no bwrap")
    return lambda level: works if level in working else fails


def test_the_best_level_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(choice.VARIABLE, raising=False)
    monkeypatch.setattr(choice, "trial", only(LANDLOCK, LIMITS))
    assert choice.level() == LANDLOCK


def test_the_weakest_level_is_taken_only_if_it_is_asked_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv(choice.VARIABLE, raising=False)
    monkeypatch.setattr(choice, "trial", only(LIMITS))
    with pytest.raises(OptionError) as caught:
        choice.level()
    text = str(caught.value)
    assert "install bubblewrap, or set COPYSPEC_SANDBOX=limits to run them" in text
    assert "files are NOT contained" in text
    assert "\n" not in text
    monkeypatch.setenv(choice.VARIABLE, "limits")
    assert choice.level() == LIMITS


@pytest.mark.parametrize(
    ("name", "message"),
    [
        (
            "bubblewrap",
            "COPYSPEC_SANDBOX=bubblewrap does not work on this machine: cannot start: no bwrap",
        ),
        ("limit", "unknown COPYSPEC_SANDBOX 'limit' (did you mean 'limits'?)"),
        (
            "namespaces",
            "unknown COPYSPEC_SANDBOX 'namespaces'; known: bubblewrap, landlock",
        ),
    ],
)
def test_other_names_are_refused(monkeypatch: pytest.MonkeyPatch, name: str, message: str) -> None:
    monkeypatch.setattr(choice, "trial", only(LIMITS))
    monkeypatch.setenv(choice.VARIABLE, name)
    with pytest.raises(OptionError) as caught:
        choice.level()
    assert str(caught.value).startswith(message)


def test_what_is_refused_at_the_weakest_level_says_so() -> None:
    assert all("NOT contained" not in level.description for level in (BUBBLEWRAP, LANDLOCK))
    assert "NOT contained" in LIMITS.description


@EVERY_LEVEL
def test_the_memory_of_all_processes_is_limited(
    level: Level, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each of them stays within the limit of its address space."""
    if cgroups._controller() is None:
        pytest.skip("NOT TESTED: this user can make no control group here")
    monkeypatch.setenv(choice.VARIABLE, level.name)
    source = """
import os, time
for _ in range(4):
    if os.fork() == 0:
        held = b"x" * 100 * 2**20
        time.sleep(5)
        os._exit(0)
for _ in range(4):
    if os.wait()[1]:
        raise SystemExit(9)
"""
    outcome = run_program(source, Limits(memory_bytes=200 * 2**20))
    assert outcome.reason in ("over 200 MiB of memory", "exit code 9")
    assert (
        run_program(source.replace("100 *", "10 *").replace("sleep(5)", "sleep(0)")).status == "ok"
    )
    controller = cgroups._controller()
    assert controller
    assert not [*controller.folder.glob(f"copyspec-{os.getpid()}-*")]


def test_groups_of_killed_processes_are_removed() -> None:
    controller = cgroups._controller()
    if controller is None:
        pytest.skip("NOT TESTED: this user can make no control group here")
    ended = subprocess.Popen(["/bin/true"])
    ended.wait()
    left, used = (controller.folder / f"copyspec-{pid}-0x" for pid in (ended.pid, os.getpid()))
    left.mkdir()
    used.mkdir()
    cgroups._sweep(controller)
    assert not left.exists()
    assert used.exists()
    used.rmdir()


@EVERY_LEVEL
@pytest.mark.skipif(sys.platform != "linux", reason="NOT TESTED: looks for processes in /proc")
def test_a_program_ends_if_what_watches_it_is_killed(
    level: Level, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a namespace nothing but this process is left to end it."""
    monkeypatch.setenv(choice.VARIABLE, level.name)
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
        ended = pool.submit(run_program, source)
        wait_until(lambda: bool(processes_with(f"time.sleep(60)\0{marker}")))
        watches[0].process.kill()
        assert ended.result().status == "killed"
    wait_until(lambda: not processes_with(marker))
