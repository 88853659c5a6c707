"""Hostile programs at every level of containment that works here, and this process unharmed."""

import os
import subprocess
import sys
import tempfile
import textwrap
from pathlib import Path
from unittest.mock import Mock

import pytest
from processes import processes_with, wait_until
from sandbox_levels import WORKING

from copyspec_eval.sandbox import programs
from copyspec_eval.sandbox.commands import DEFAULT_LIMITS, LANDLOCK, Command, Level, Limits, Outcome
from copyspec_eval.sandbox.process import PYTHON, Watch
from copyspec_eval.sandbox.programs import function, run, run_all, run_program

SHORT = Limits(wall_seconds=0.5)

# What runs at `limits` is run at `landlock` as well.
SLOW = [pytest.mark.slow] if LANDLOCK in WORKING else []
NAMES = ("bubblewrap", "landlock", pytest.param("limits", marks=SLOW))


@pytest.fixture(params=NAMES, autouse=True)
def level(request, monkeypatch, tmp_path):
    """One level after the other, with a folder for temporary files that is empty afterwards."""
    working = {level.name: level for level in WORKING}
    if request.param not in working:
        pytest.skip(f"NOT TESTED: containment by {request.param} does not work on this machine")
    monkeypatch.setenv(programs.VARIABLE, request.param)
    monkeypatch.setenv("SECRET", "in the environment")
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setenv("TMPDIR", str(folder))
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    yield working[request.param]
    assert list(folder.iterdir()) == []


def ran(source: str, limits: Limits = DEFAULT_LIMITS) -> Outcome:
    return run_program(textwrap.dedent(source), limits)


def sleeper(kind: str, level: Level) -> tuple[list[str], str]:
    """A program that sleeps for a minute, and what is found in its command line alone."""
    marker = f"{kind}-{os.getpid()}-{level.name}"
    return [PYTHON, "-I", "-S", "-c", "import time; time.sleep(60)", marker], marker


WALL, OUTPUT = "over 0.5 s of wall time", "over 64 KiB of output"
SESSIONS = """
import os
while True:
    if os.fork() == 0:
        try: os.setsid()
        except OSError: pass
"""
DEAF = """
import signal
for s in set(signal.Signals) - {signal.SIGKILL, signal.SIGSTOP}: signal.signal(s, signal.SIG_IGN)
while True: pass
"""
IN_C = """
import sys
sys.setrecursionlimit(10**9)
class A:
    def __repr__(self): return repr(self)
repr(A())
"""
ENDS: dict[str, tuple[str, str | None, str]] = {
    "loop-cpu": ("while True: pass", "timeout", "over 1 s of processor time"),
    "fork-bomb-of-sessions": (SESSIONS, "killed", "over 16 processes"),
    "memory": ("x = bytearray(10 * 2**30)", "error", "exit code 1: MemoryError"),
    "output": ("while True: print('x' * 2**20)", "output_limit", OUTPUT),
    "error-output": ("import sys\nwhile True: sys.stderr.write('x' * 2**20)", "timeout", WALL),
    "huge-line": ("import sys\nsys.stdout.write('7' * 2**20)", "output_limit", OUTPUT),
    "closes-stdout": ("import os, time\nos.close(1)\ntime.sleep(60)", "timeout", WALL),
    "waits-for-ever": ("import threading\nthreading.Event().wait()", "timeout", WALL),
    "recursion": ("def f(): f()\nf()", "error", "exit code 1: RecursionError: maximum"),
    "recursion-in-C": (IN_C, None, ""),
    "ignores-signals": (DEAF, "timeout", WALL),
    "input": ("input('how many? ')", "error", "exit code 1: EOFError: EOF when reading a line"),
    "file": ("open('big', 'wb').write(bytes(2**28))", "error", ""),
    "raises": ("raise ValueError('no\\nway')", "error", "exit code 1: way"),
    "exit-text": ("import sys\nsys.exit('text')", "error", "exit code 1: text"),
    "exit-code": ("import sys\nsys.exit(3)", "error", "exit code 3"),
    "no-python": ("if:", "error", "exit code 1: SyntaxError: invalid syntax"),
    "no-text": ("\0\ud800", "error", ""),
    "third-party": ("import numpy", "error", ""),
}


@pytest.mark.parametrize("name", ENDS)
def test_a_program_ends_with_status_and_reason(name):
    source, status, reason = ENDS[name]
    limits = SHORT if reason == WALL else DEFAULT_LIMITS
    if name == "loop-cpu":
        limits = Limits(wall_seconds=5, cpu_seconds=1)
    outcome = ran(source, limits)
    assert outcome.status == (status or outcome.status) != "ok"
    assert outcome.reason.startswith(reason)
    assert "\n" not in outcome.reason
    assert outcome.reason.startswith("exit code") == (outcome.status == "error")
    assert len(outcome.stdout) <= limits.output_bytes


@pytest.mark.parametrize(
    ("source", "stdout"),
    [
        ("print(6 * 7)", "42\n"),
        ("x = 42", ""),
        ("import os\nos.write(1, b'42\\n')\nos._exit(0)", "42\n"),
        ("print(42, flush=True)\nimport os\nos.close(1)", "42\n"),
        ("import os\nos.write(1, b'42 \\xff\\xfe')", "42 \N{REPLACEMENT CHARACTER}"),
        ("print('é €')", "é €\n"),
        ("import math, fractions, re\nprint(math.pi > 3)", "True\n"),
        ("import os\nprint(os.listdir())", "[]\n"),
        ("import sys\nprint(repr(sys.stdin.read()))", "''\n"),
        ("x = 'x' * 60000\nprint(x, end='')", "x" * 60000),
    ],
    ids=str,
)
def test_a_program_that_ends_well(source, stdout):
    outcome = ran(source)
    assert (outcome.status, outcome.reason) == ("ok", "")
    assert outcome.stdout.startswith(stdout)


def test_the_environment_is_not_ours():
    outcome = ran("import os\nprint(dict(os.environ))")
    assert "SECRET" not in outcome.stdout
    assert set(eval(outcome.stdout)) <= {"PATH", "HOME", "LANG", "OMP_NUM_THREADS", "PWD", "TMPDIR"}


def test_a_fork_bomb_never_has_more_than_its_processes():
    """Each process may be in one fork that was allowed when there was still room."""
    outcome = ran("import os\nwhile True: os.fork(); os.write(1, f'{os.getpid()}\\n'.encode())")
    assert (outcome.status, outcome.reason) == ("killed", "over 16 processes")
    assert len(set(outcome.stdout.split())) <= 2 * DEFAULT_LIMITS.num_processes


def test_a_child_is_not_left_running(level):
    command, marker = sleeper("left", level)
    outcome = ran(f"""
    import contextlib, os, subprocess
    if os.fork() == 0:
        subprocess.Popen({command})
        with contextlib.suppress(PermissionError):
            os.setsid()
            subprocess.Popen({command})
        os._exit(0)
    os.wait()
    print("started")
    """)
    assert (outcome.status, outcome.stdout) == ("ok", "started\n")
    wait_until(lambda: not processes_with(marker))
    assert ran(f"import subprocess\nsubprocess.run({command})", SHORT).status == "timeout"
    wait_until(lambda: not processes_with(marker))


def test_many_files_and_deep_folders_are_removed():  # which `level` checks after every test
    outcome = ran("""
    import contextlib, os
    for number in range(300):
        open(str(number), "w").close()
    os.makedirs("a/b")
    with contextlib.suppress(PermissionError):
        os.chmod("a/b", 0)
        os.chmod("a", 0)
    for _ in range(600):  # longer than a path may be
        os.mkdir("folder")
        os.chdir("folder")
    print("done")
    """)
    assert outcome.stdout == "done\n"


def test_an_interrupted_wait_leaves_nothing(level, monkeypatch):
    command, marker = sleeper("interrupted", level)

    def interrupt(watch):
        wait_until(lambda: bool(processes_with(marker)))
        raise KeyboardInterrupt

    monkeypatch.setattr(Watch, "outcome", interrupt)
    with pytest.raises(KeyboardInterrupt):
        run(Command(command))
    wait_until(lambda: not processes_with(marker))


def test_nothing_outlives_this_process(level):
    """Even if it is killed and cannot clean up."""
    command, marker = sleeper("orphan", level)
    source = f"from copyspec_eval.sandbox import programs as p; p.run(p.Command({command}))"
    with subprocess.Popen([sys.executable, "-c", source]) as ours:
        wait_until(lambda: len(processes_with(f"time.sleep(60)\0{marker}")) > 1)
        ours.kill()
    wait_until(lambda: not processes_with(f"time.sleep(60)\0{marker}"))
    for folder in Path(tempfile.gettempdir()).iterdir():
        folder.rmdir()


def test_a_command_with_input_and_what_it_may_read(level, tmp_path):
    (tmp_path / "program.py").write_text("import sys\nprint(sys.stdin.read()[::-1], sys.argv[1])")
    command = [PYTHON, "-I", "-S", str(tmp_path / "program.py"), "x"]
    assert run(Command(command, b"abc", readable=[tmp_path])).stdout == "cba x\n"
    if level.name != "limits":
        reason = run(Command(command, b"abc")).reason
        assert "No such file" in reason or "Permission denied" in reason


def test_what_is_installed_can_be_read():
    """This package and EvalPlus, which is installed beside it."""
    command = function("scoring.humaneval.verdict:sanitise", stdin=b'[["x = 1", "x"]]')
    assert run(command).stdout == '"x = 1"\n'


def test_a_program_that_does_not_exist():
    outcome = run(Command(["/nowhere/program"]))
    assert outcome.status == "error"
    reason = "exit code 126: cannot start /nowhere/program: [Errno 2] No such file"
    assert outcome.reason.startswith(reason)


def test_many_side_by_side_and_equal_ones_once(monkeypatch, capfd):
    outcomes = run_all([f"print({number})" for number in range(8)])
    assert [outcome.stdout for outcome in outcomes] == [f"{number}\n" for number in range(8)]
    assert "Running programs" in capfd.readouterr().err
    run_one = Mock(side_effect=lambda source: Outcome("ok", source, ""))
    monkeypatch.setattr(programs, "run_program", run_one)
    assert [outcome.stdout for outcome in run_all(["a", "b", "a"])] == ["a", "b", "a"]
    assert run_one.call_count == 2
    assert run_all([]) == []


def test_containment_is_logged_once(level, caplog):
    programs.announce.cache_clear()
    with caplog.at_level("INFO", "lm_eval.copyspec"):
        programs.announce(level)
        programs.announce(level)
    [record] = caplog.records
    assert record.getMessage() == f"untrusted programs run under {level.description}"
    assert ("NOT contained" in record.getMessage()) == (level.name == "limits")
    assert record.levelname == ("WARNING" if level.name == "limits" else "INFO")
