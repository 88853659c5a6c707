"""Hostile programs at every level of containment that works here, and this process unharmed."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import tempfile
import textwrap
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from processes import processes_with, wait_until
from sandbox_levels import WORKING

from copyspec_eval.sandbox import programs
from copyspec_eval.sandbox.commands import DEFAULT_LIMITS, Command, Level, Limits, Outcome
from copyspec_eval.sandbox.process import PYTHON
from copyspec_eval.sandbox.programs import function, run, run_all, run_program
from copyspec_eval.sandbox.watch import Watch

SHORT = Limits(wall_seconds=1)
ONE_SECOND_OF_CPU = Limits(wall_seconds=5, cpu_seconds=1)
HERE = [level.name for level in WORKING]


# What runs at `limits` is run at `landlock` as well.
NAMES = (
    "bubblewrap",
    "landlock",
    pytest.param("limits", marks=[pytest.mark.slow] if "landlock" in HERE else []),
)


@pytest.fixture(params=NAMES, autouse=True)
def level(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> Iterator[Level]:
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


def contained(level: Level) -> bool:
    return level.name != "limits"


@pytest.mark.parametrize(
    ("source", "limits", "status", "reason"),
    [
        pytest.param("while True: pass", SHORT, "timeout", "over 1 s of wall time", id="loop"),
        pytest.param(
            "while True: pass",
            ONE_SECOND_OF_CPU,
            "timeout",
            "over 1 s of processor time",
            id="loop-cpu",
        ),
        pytest.param(
            "import os\nwhile True: os.fork()",
            DEFAULT_LIMITS,
            "killed",
            "over 16 processes",
            id="fork-bomb",
        ),
        pytest.param(
            "import os\nwhile True:\n  if os.fork() == 0:\n"
            "    try: os.setsid()\n    except OSError: pass",
            DEFAULT_LIMITS,
            "killed",
            "over 16 processes",
            id="fork-bomb-of-sessions",
        ),
        pytest.param(
            "x = bytearray(10 * 2**30)",
            DEFAULT_LIMITS,
            "error",
            "exit code 1: MemoryError",
            id="memory",
        ),
        pytest.param(
            "while True: print('x' * 2**20)",
            DEFAULT_LIMITS,
            "output_limit",
            "over 64 KiB of output",
            id="output",
        ),
        pytest.param(
            "import sys\nwhile True: sys.stderr.write('x' * 2**20)",
            SHORT,
            "timeout",
            "over 1 s of wall time",
            id="error-output",
        ),
        pytest.param(
            "import sys\nsys.stdout.write('7' * 2**20)",
            DEFAULT_LIMITS,
            "output_limit",
            "over 64 KiB of output",
            id="huge-line",
        ),
        pytest.param(
            "import os, time\nos.close(1)\ntime.sleep(60)",
            SHORT,
            "timeout",
            "over 1 s of wall time",
            id="closes-stdout-and-sleeps",
        ),
        pytest.param(
            "import threading\nthreading.Event().wait()",
            SHORT,
            "timeout",
            "over 1 s of wall time",
            id="waits-for-ever",
        ),
        pytest.param(
            "def f(n): return f(n + 1)\nf(0)",
            DEFAULT_LIMITS,
            "error",
            "exit code 1: RecursionError: maximum recursion depth exceeded",
            id="recursion",
        ),
        pytest.param(
            "import sys\nsys.setrecursionlimit(10**9)\n"
            "class A:\n  def __repr__(self): return repr(self)\nrepr(A())",
            DEFAULT_LIMITS,
            None,
            None,
            id="recursion-in-C",
        ),
        pytest.param(
            "import signal\n"
            "for s in set(signal.Signals) - {signal.SIGKILL, signal.SIGSTOP}:\n"
            "    signal.signal(s, signal.SIG_IGN)\n"
            "while True: pass",
            SHORT,
            "timeout",
            "over 1 s of wall time",
            id="ignores-signals",
        ),
        pytest.param(
            "input('how many? ')",
            DEFAULT_LIMITS,
            "error",
            "exit code 1: EOFError: EOF when reading a line",
            id="input",
        ),
        pytest.param(
            "open('big', 'wb').write(bytes(2**28))\n",
            DEFAULT_LIMITS,
            "error",
            None,
            id="file",
        ),
        pytest.param(
            "raise ValueError('no\\nway')", DEFAULT_LIMITS, "error", "exit code 1: way", id="raises"
        ),
        pytest.param(
            "import sys\nsys.exit('text')",
            DEFAULT_LIMITS,
            "error",
            "exit code 1: text",
            id="exit-text",
        ),
        pytest.param(
            "import sys\nsys.exit(3)", DEFAULT_LIMITS, "error", "exit code 3", id="exit-code"
        ),
        pytest.param(
            "if:",
            DEFAULT_LIMITS,
            "error",
            "exit code 1: SyntaxError: invalid syntax",
            id="no-python",
        ),
        pytest.param("\0\ud800", DEFAULT_LIMITS, "error", None, id="no-text"),
        pytest.param("import numpy", DEFAULT_LIMITS, "error", None, id="third-party"),
    ],
)
def test_a_program_ends_with_status_and_reason(
    source: str, limits: Limits, status: str | None, reason: str | None
) -> None:
    started = time.monotonic()
    outcome = ran(source, limits)
    assert time.monotonic() - started < limits.wall_seconds + 2
    assert outcome.status != "ok"
    assert outcome.status == (status or outcome.status)
    assert outcome.reason.startswith(reason or "")
    assert "\n" not in outcome.reason
    assert (outcome.exit_code is not None) == (outcome.status == "error")
    assert len(outcome.stdout) <= limits.output_bytes


@pytest.mark.parametrize(
    ("source", "stdout"),
    [
        pytest.param("print(6 * 7)", "42\n", id="plain"),
        pytest.param("x = 42", "", id="no-print"),
        pytest.param("import os\nos.write(1, b'42\\n')\nos._exit(0)", "42\n", id="exits-at-once"),
        pytest.param("print(42, flush=True)\nimport os\nos.close(1)", "42\n", id="closes-stdout"),
        pytest.param(
            "import os\nos.write(1, b'42 \\xff\\xfe')", "42 \N{REPLACEMENT CHARACTER}", id="bytes"
        ),
        pytest.param("print('é €')", "é €\n", id="utf-8"),
        pytest.param("import math, fractions, re\nprint(math.pi > 3)", "True\n", id="library"),
        pytest.param("import os\nprint(os.listdir())", "[]\n", id="empty-folder"),
        pytest.param("import sys\nprint(repr(sys.stdin.read()))", "''\n", id="empty-input"),
        pytest.param("x = 'x' * 60000\nprint(x, end='')", "x" * 60000, id="under-the-limit"),
    ],
)
def test_a_program_that_ends_well(source: str, stdout: str) -> None:
    outcome = ran(source)
    assert (outcome.status, outcome.exit_code, outcome.reason) == ("ok", 0, "")
    assert outcome.stdout.startswith(stdout)


def test_the_environment_is_not_ours() -> None:
    outcome = ran("import os\nprint(dict(os.environ))")
    assert "SECRET" not in outcome.stdout
    assert set(eval(outcome.stdout)) <= {"PATH", "HOME", "LANG", "OMP_NUM_THREADS", "PWD", "TMPDIR"}


SPY = """
import pathlib
for path in {paths}:
    try:
        print(pathlib.Path(path).read_bytes())
    except OSError:
        print("refused")
"""


def test_files_of_others_cannot_be_read(level: Level, tmp_path: Path) -> None:
    if not contained(level):
        pytest.skip("this level does not contain files, and reports it")
    secret = tmp_path / "secret"
    secret.write_text("here")
    here = f"/proc/{os.getpid()}"
    paths = [str(secret), "/etc/passwd", f"{here}/environ", f"{here}/mem", __file__]
    assert ran(SPY.format(paths=paths)).stdout.split() == ["refused"] * len(paths)
    assert "SECRET" not in ran(SPY.format(paths=["/proc/1/environ"])).stdout
    home = ran(f"import os\nprint(os.listdir({str(Path.home())!r}))").stdout
    inside = Path(sys.base_prefix).is_relative_to(Path.home())
    assert len(home.split(",")) <= 1 if inside else home in ("", "[]\n")


def test_nothing_outside_can_be_written(level: Level, tmp_path: Path) -> None:
    if not contained(level):
        pytest.skip("this level does not contain files, and reports it")
    places = ["/new", "/usr/new", "/proc/sys/kernel/core_pattern", f"{sys.base_prefix}/new"]
    places += [str(tmp_path / "new"), f"/proc/{os.getpid()}/mem", "/dev/new", "/etc/new"]
    source = "for p in {}:\n  try: print(open(p, 'r+' if p[:5] == '/proc' else 'w'))\n"
    outcome = ran(source.format(places) + "  except OSError: print('refused')")
    assert outcome.stdout.split() == ["refused"] * len(places)
    assert not (tmp_path / "new").exists()


def test_mounts_cannot_be_undone(level: Level) -> None:
    if not contained(level):
        pytest.skip("this level does not contain files, and reports it")
    source = """
    import ctypes
    libc = ctypes.CDLL(None)
    print(libc.umount2(b"/usr", 2), libc.mount(b"none", b"/", None, 4096 | 32, b""))
    libc.unshare(0x10000000)
    libc.unshare(0x20000)
    print(libc.umount2(b"/usr", 2), libc.mount(b"none", b"/usr", None, 4096 | 32, b""))
    print(libc.mount(b"proc", b"/proc", b"proc", 0, b""))
    """
    assert set(ran(source).stdout.split()) == {"-1"}


def test_no_network(level: Level) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(0.1)
        port = server.getsockname()[1]
        outcome = ran(f"import socket\nsocket.create_connection(('127.0.0.1', {port}), 1)")
        if sys.platform != "linux":
            pytest.skip("this system cannot refuse sockets, and the level says so")
        assert outcome.status == "error"
        with pytest.raises(TimeoutError):
            server.accept()


def test_a_fork_bomb_never_has_more_than_its_processes() -> None:
    """Each process may be in one fork that was allowed when there was still room."""
    outcome = ran(
        "import os\nwhile True:\n  os.fork()\n  os.write(1, f'{os.getpid()}\\n'.encode())"
    )
    assert outcome.reason == "over 16 processes"
    assert len(set(outcome.stdout.split())) <= 2 * DEFAULT_LIMITS.num_processes


@pytest.mark.parametrize(
    "target", ["os.getppid()", "1", "{tests}", "-1", "0", "-os.getppid()", "-{tests_group}"]
)
def test_signals_reach_nobody_else(level: Level, target: str) -> None:
    if sys.platform != "linux":
        pytest.skip("this system cannot refuse signals, and the level says so")
    pid = target.format(tests=os.getpid(), tests_group=os.getpgid(0))
    source = f"import os, time\nprint(1, flush=True)\nos.kill({pid}, 9)\ntime.sleep(0.2)"
    outcome = ran(source)
    assert outcome.stdout == "1\n"
    if level.shared:
        assert outcome.reason == "exit code 1: PermissionError: [Errno 1] Operation not permitted"
    elif target == "0":
        assert outcome.reason == "killed by signal 9"


def test_a_child_is_not_left_running(level: Level) -> None:
    marker = f"left-{os.getpid()}-{level.name}"
    outcome = ran(f"""
    import os, subprocess, sys, time
    sleeper = [sys.executable, "-c", "import time; time.sleep(60)", "{marker}"]
    if os.fork() == 0:
        subprocess.Popen(sleeper)
        try:
            os.setsid()
            subprocess.Popen(sleeper)
        except PermissionError:
            pass
        os._exit(0)
    os.wait()
    print("started")
    """)
    assert (outcome.status, outcome.stdout) == ("ok", "started\n")
    assert processes_with(marker) == []


def test_a_child_is_not_left_running_after_the_wall_time(level: Level) -> None:
    marker = f"left-late-{os.getpid()}-{level.name}"
    outcome = ran(
        f"""
    import subprocess, sys
    program = [sys.executable, "-c", "import time; time.sleep(60)", "{marker}"]
    subprocess.Popen(program).wait()
    """,
        SHORT,
    )
    assert outcome.status == "timeout"
    assert processes_with(marker) == []


def test_ten_thousand_files_are_removed() -> None:
    """That is checked after every test."""
    outcome = ran(
        """
        import os
        for number in range(10_000):
            open(str(number), "w").close()
        os.makedirs("a/b")
        try:
            os.chmod("a/b", 0)
            os.chmod("a", 0)
        except PermissionError:
            pass
        deep = "d"
        for _ in range(2000):
            os.mkdir(deep)
            os.chdir(deep)
        print("done")
        """,
        Limits(wall_seconds=10),
    )
    assert outcome.stdout == "done\n"


def test_an_interrupted_wait_leaves_nothing(level: Level, monkeypatch: pytest.MonkeyPatch) -> None:
    marker = f"interrupted-{os.getpid()}-{level.name}"

    def interrupt(*_: object) -> None:
        time.sleep(0.3)
        raise KeyboardInterrupt

    monkeypatch.setattr(Watch, "outcome", interrupt)
    with pytest.raises(KeyboardInterrupt):
        run(Command([PYTHON, "-I", "-S", "-c", "import time; time.sleep(60)", marker]))
    assert processes_with(marker) == []


def test_nothing_outlives_this_process(level: Level) -> None:
    """Even if it is killed and cannot clean up."""
    marker = f"orphan-{os.getpid()}-{level.name}"
    source = f"""
    from copyspec_eval.sandbox.commands import Command
    from copyspec_eval.sandbox.programs import run
    run(Command([{PYTHON!r}, "-I", "-S", "-c", "import time; time.sleep(60)", {marker!r}]))
    """
    with subprocess.Popen([sys.executable, "-c", textwrap.dedent(source)]) as ours:
        wait_until(lambda: len(processes_with(f"time.sleep(60)\0{marker}")) > 1)
        ours.kill()
    wait_until(lambda: not processes_with(f"time.sleep(60)\0{marker}"))
    for folder in Path(tempfile.gettempdir()).iterdir():
        folder.rmdir()


def test_a_command_with_input_and_what_it_may_read(level: Level, tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text("import sys\nprint(sys.stdin.read()[::-1], sys.argv[1])")
    python = os.path.realpath(sys.executable)
    command = [python, "-I", "-S", str(tmp_path / "program.py"), "x"]
    assert run(Command(command, b"abc", readable=[tmp_path])).stdout == "cba x\n"
    if contained(level):
        reason = run(Command(command, b"abc")).reason
        assert "No such file" in reason or "Permission denied" in reason


def test_what_is_installed_can_be_read() -> None:
    """This package and EvalPlus, which is installed beside it."""
    command = function("scoring.humaneval.verdict:sanitise", stdin=b'[["x = 1", "x"]]')
    assert run(command).stdout == '"x = 1"\n'


def test_a_program_that_does_not_exist() -> None:
    outcome = run(Command(["/nowhere/program"]))
    assert (outcome.status, outcome.exit_code) == ("error", 126)
    assert "cannot start /nowhere/program: [Errno 2] No such file" in outcome.reason


def test_equal_programs_run_once(monkeypatch: pytest.MonkeyPatch) -> None:
    started = []

    def run_one(source: str) -> Outcome:
        started.append(source)
        return Outcome("ok", 0, source, "")

    monkeypatch.setattr(programs, "run_program", run_one)
    assert [outcome.stdout for outcome in run_all(["a", "b", "a"])] == ["a", "b", "a"]
    assert sorted(started) == ["a", "b"]
    assert run_all([]) == []


def test_many_side_by_side(capfd: pytest.CaptureFixture[str]) -> None:
    outcomes = run_all([f"print({number})" for number in range(8)])
    assert [outcome.stdout for outcome in outcomes] == [f"{number}\n" for number in range(8)]
    assert "Running programs" in capfd.readouterr().err


def test_containment_is_logged_once(level: Level, caplog: pytest.LogCaptureFixture) -> None:
    programs.announce.cache_clear()
    with caplog.at_level("INFO", "lm_eval.copyspec"):
        programs.announce(level)
        programs.announce(level)
    [record] = caplog.records
    assert record.getMessage() == f"untrusted programs run under {level.description}"
    assert ("NOT contained" in record.getMessage()) == (record.levelname == "WARNING")
    assert contained(level) == (record.levelname == "INFO")
