"""Nothing that was acknowledged is lost, whatever happens to the writer or the disk."""

import errno
import fcntl
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from filelock import FileLock

from copyspec_eval import journal
from copyspec_eval.errors import DataError

WRITER = """
import json, sys
from pathlib import Path
from copyspec_eval import journal
path, name, count = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
for number in range(count):
    row = json.dumps({"writer": name, "number": number, "text": "x" * 300})
    journal.append(path, row.encode())
    print(number, flush=True)
"""


def start_writer(path: Path, name: str, count: int) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", WRITER, str(path), name, str(count)],
        stdout=subprocess.PIPE,
        text=True,
    )


def numbers_of(path: Path, name: str) -> list[int]:
    rows = [json.loads(line) for _, line in journal.lines(path)]
    return [row["number"] for row in rows if row["writer"] == name]


def test_lines_come_back_and_blank_ones_do_not(tmp_path):
    path = tmp_path / "new" / "file.jsonl"
    journal.append(path, b"one")
    journal.append(path, "zwölf".encode())
    assert path.read_bytes() == b"one\n" + "zwölf".encode() + b"\n"
    path.write_bytes(b"one\r\n\n\ntwo")
    assert list(journal.lines(path)) == [(1, b"one"), (4, b"two")]


def test_a_torn_last_line_is_never_glued_to_the_next(tmp_path):
    path = tmp_path / "file.jsonl"
    path.write_bytes(b'{"a": 1}\n{"b": ')
    journal.append(path, b'{"c": 3}')
    assert [line for _, line in journal.lines(path)] == [b'{"a": 1}', b'{"b": ', b'{"c": 3}']


def test_two_processes_lose_and_mix_nothing(tmp_path):
    path = tmp_path / "file.jsonl"
    writers = [start_writer(path, name, 1000) for name in "ab"]
    for writer in writers:
        writer.communicate()
        assert writer.returncode == 0
    for name in "ab":
        assert numbers_of(path, name) == list(range(1000))


def test_kills_lose_nothing_that_was_acknowledged(tmp_path):
    """Fifty writers in turn, each killed somewhere in its loop."""
    path = tmp_path / "file.jsonl"
    for attempt in range(50):
        reading, writing = os.pipe()
        child = os.fork()
        if not child:  # a fork takes no time to import
            os.close(reading)
            os.dup2(writing, 1)
            sys.stdout = os.fdopen(1, "w")
            sys.argv = ["", str(path), str(attempt), "1000000"]
            exec(compile(WRITER, "writer", "exec"), {})
        os.close(writing)
        time.sleep(0.002 * (attempt % 10))
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        with os.fdopen(reading) as acknowledged:
            whole = [line for line in acknowledged if line.endswith("\n")]
        journal.append(path, b'{"writer": "between", "number": 0}')
        actual = numbers_of_readable(path, str(attempt))
        assert actual[: len(whole)] == list(range(len(whole)))
        assert len(actual) <= len(whole) + 1, "at most the row under way was written unacknowledged"
    assert len(numbers_of_readable(path, "between")) == 50


def numbers_of_readable(path: Path, name: str) -> list[int]:
    numbers = []
    for _, line in journal.lines(path):
        try:
            row = json.loads(line)
        except ValueError:  # torn by a kill
            continue
        if row["writer"] == name:
            numbers.append(row["number"])
    return numbers


LIMITED = """
import resource, sys
from pathlib import Path
from copyspec_eval import journal
from copyspec_eval.errors import DataError
path = Path(sys.argv[1])
resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
written = 0
try:
    for written in range(100):
        journal.append(path, b"x" * 299)
except DataError as error:
    print(written, error)
"""


def test_a_write_that_is_cut_short_is_taken_back(tmp_path):
    """The fourth line of 300 bytes would pass the limit of 1,000: the kernel takes 100 of them."""
    path = tmp_path / "file.jsonl"
    result = subprocess.run(
        [sys.executable, "-c", LIMITED, str(path)], capture_output=True, text=True, check=True
    )
    assert result.stdout.startswith("3 "), result.stderr
    assert "cannot be written (File too large); free space there" in result.stdout
    assert path.read_bytes() == (b"x" * 299 + b"\n") * 3


@pytest.fixture
def tiny_disk(tmp_path: Path) -> Path:
    folder = tmp_path / "disk"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(folder)]
    if os.geteuid() != 0 or subprocess.run(mount, capture_output=True).returncode:
        pytest.skip("NOT TESTED: a full disk, which needs the right to mount one")
    return folder


def test_a_full_disk_spoils_no_line_and_no_file(tiny_disk):
    path = tiny_disk / "file.jsonl"
    written: list[int] = []

    def fill() -> None:
        for number in range(1000):
            journal.append(path, b"%06d" % number + b"x" * 994)
            written.append(number)

    try:
        with pytest.raises(DataError, match="No space left on device"):
            fill()
        lines = [line for _, line in journal.lines(path)]
        assert [int(line[:6]) for line in lines] == written
        assert {len(line) for line in lines} == {1000}
        with pytest.raises(DataError, match="No space left on device"):
            journal.replace(tiny_disk / "file.json", "x" * 100_000)
        assert not (tiny_disk / "file.json").exists()
        path.unlink()
        journal.replace(tiny_disk / "file.json", "whole")
        with pytest.raises(DataError, match="No space left on device"):
            journal.replace(tiny_disk / "file.json", "x" * 100_000)
        assert (tiny_disk / "file.json").read_text() == "whole"
        assert sorted(p.name for p in tiny_disk.iterdir()) == [".lock", "file.json"]
    finally:
        subprocess.run(["umount", str(tiny_disk)], check=True)


def test_what_cannot_be_written_is_one_line(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(DataError, match=r"file: cannot be written \(File exists\)"):
        journal.append(tmp_path / "file" / "turns.jsonl", b"x")
    with pytest.raises(DataError, match="cannot be written"), journal.locked(Path("/proc/nowhere")):
        pass
    with pytest.raises(DataError, match=r"nowhere: cannot be read \(No such file"):
        list(journal.lines(tmp_path / "nowhere"))
    (tmp_path / ".rows.jsonl.lock").mkdir()
    wrong = pytest.raises(DataError, match=r"\.rows\.jsonl\.lock: cannot be written")
    with wrong, journal.alone(tmp_path / "rows.jsonl"):
        pass


def test_the_lock_can_be_taken_again_by_its_holder(tmp_path):
    with journal.locked(tmp_path):
        journal.append(tmp_path / "file", b"x")
        journal.replace(tmp_path / "other", "y")
    assert (tmp_path / "file").read_bytes() == b"x\n"


def test_a_file_system_without_locks_is_written_all_the_same(tmp_path, monkeypatch):
    def no_lock(*_: object) -> None:
        raise NotImplementedError

    monkeypatch.setattr(FileLock, "acquire", no_lock)
    journal.append(tmp_path / "file", b"x")
    assert (tmp_path / "file").read_bytes() == b"x\n"


def test_a_lock_file_that_is_left_without_flock_is_named(tmp_path, monkeypatch):
    """Where there is no flock, a lock is held as long as its file is there."""

    def no_flock(*_: object) -> None:
        raise OSError(errno.ENOSYS, "no flock here")

    monkeypatch.setattr(fcntl, "flock", no_flock)
    monkeypatch.setattr(journal, "WAIT_SECONDS", 0.1)
    for name in (".lock", ".rows.jsonl.lock"):
        (tmp_path / name).write_text(f"{os.getppid()}\n{socket.gethostname()}\n")
    with (
        pytest.warns(UserWarning, match="flock not supported"),
        pytest.raises(DataError, match=r"/\.lock: another process holds it .* or remove the file"),
    ):
        journal.append(tmp_path / "rows.jsonl", b"x")
    (tmp_path / ".lock").unlink()
    with (
        pytest.warns(UserWarning, match="flock not supported"),
        pytest.raises(DataError, match=r"another process is .* remove .*\.rows\.jsonl\.lock"),
        journal.alone(tmp_path / "rows.jsonl"),
    ):
        pass


@pytest.mark.parametrize("name", ["symbolic", "dangling", "hard", "pipe"])
def test_nothing_is_written_through_a_link(name, tmp_path):
    elsewhere, folder = tmp_path / "elsewhere", tmp_path / "folder"
    elsewhere.write_bytes(b"theirs")
    folder.mkdir()
    (folder / "symbolic").symlink_to(elsewhere)
    (folder / "dangling").symlink_to(tmp_path / "nowhere")
    (folder / "hard").hardlink_to(elsewhere)
    for partial in (".partial", f"{name}.partial"):
        (folder / partial).symlink_to(elsewhere)
    os.mkfifo(folder / "pipe")
    with pytest.raises(DataError, match=rf"{name}: (cannot be written|is a link or not)"):
        journal.append(folder / name, b"ours")
    journal.replace(folder / name, "ours")
    assert (folder / name).read_bytes() == b"ours"
    assert elsewhere.read_bytes() == b"theirs"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["elsewhere", "folder"]


def test_folders_below_an_output_folder_are_no_links(tmp_path):
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "out").symlink_to(tmp_path / "elsewhere")
    made = journal.subfolder(tmp_path / "out", "a", "b")
    assert made.is_dir(), "the user may name a link"
    (made / "c").symlink_to(tmp_path)
    with pytest.raises(DataError, match=r"a/b/c: is a link; remove it"):
        journal.subfolder(tmp_path / "out", "a", "b", "c", "d")
    assert not (tmp_path / "d").exists()


@pytest.mark.parametrize("name", ["pipe", "/dev/zero", "."])
def test_what_is_no_file_is_not_read(name, tmp_path):
    os.mkfifo(tmp_path / "pipe")
    readers: tuple[Callable[[Path], object], ...] = (
        journal.read,
        lambda path: list(journal.lines(path)),
    )
    for read in readers:
        with pytest.raises(DataError, match=r"(no regular file|cannot be read .*); check the path"):
            read(tmp_path / name)


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b'{"a": "\\ud800"}', "lone surrogate"),
        (b'{"\\uDFFF": 1}', "lone surrogate"),
        (b"[" * 10**5, "nested too deeply"),
        (b"\xff", "not UTF-8"),
        (b"9" * 10**5, "4300 digits"),
        (b"{", "Expecting"),
    ],
    ids=["value", "name", "nested", "bytes", "digits", "cut"],
)
def test_json_that_cannot_be_read(content, reason):
    with pytest.raises(ValueError, match=reason):
        journal.parsed(content)
    assert journal.parsed(b'["\\ud83d\\ude80"]') == ["\U0001f680"], "whole characters are read"
