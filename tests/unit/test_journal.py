"""Nothing that was acknowledged is lost, whatever happens to the writer or the disk."""

import json
import os
import time
from collections.abc import Callable
from contextlib import suppress
from multiprocessing import get_context
from pathlib import Path

import pytest
from filelock import FileLock
from in_process import limited_files

from copyspec_eval import journal
from copyspec_eval.errors import DataError

FORK = get_context("fork")  # it takes no time to import


def write(path: Path, name: str, count: int, acknowledged: int) -> None:
    for number in range(count):
        row = {"writer": name, "number": number, "text": "x" * 300}
        journal.append(path, json.dumps(row).encode())
        os.write(acknowledged, b"%d\n" % number)


def numbers_by(name: str, path: Path) -> list[int]:
    rows = []
    for _, line in journal.lines(path):
        with suppress(ValueError):  # torn by a kill
            rows.append(json.loads(line))
    return [row["number"] for row in rows if row["writer"] == name]


def test_lines_come_back_and_blank_ones_do_not(tmp_path):
    path = tmp_path / "new" / "file.jsonl"
    journal.append(path, b"one")
    journal.append(path, "zwölf".encode())
    assert path.read_bytes() == b"one\n" + "zwölf".encode() + b"\n"
    path.write_bytes(b"one\r\n\n\ntwo")
    assert list(journal.lines(path)) == [(1, b"one"), (4, b"two")]
    journal.append(path, b"three")
    lines = [line for _, line in journal.lines(path)]
    assert lines == [b"one", b"two", b"three"], "a torn last line is never glued to the next"


def test_two_processes_lose_and_mix_nothing(tmp_path):
    path = tmp_path / "file.jsonl"
    with Path(os.devnull).open("wb") as unread:
        arguments = [(path, name, 300, unread.fileno()) for name in "ab"]
        writers = [FORK.Process(target=write, args=each) for each in arguments]
        for writer in writers:
            writer.start()
        for writer in writers:
            writer.join()
    assert [writer.exitcode for writer in writers] == [0, 0]
    lines = [json.loads(line) for _, line in journal.lines(path)]
    assert len(lines) == 600
    for name in "ab":
        assert numbers_by(name, path) == list(range(300))


def test_kills_lose_nothing_that_was_acknowledged(tmp_path):
    path, num_kills = tmp_path / "file.jsonl", 30
    for attempt in range(num_kills):
        reading, writing = os.pipe()
        writer = FORK.Process(target=write, args=(path, str(attempt), 10**6, writing))
        writer.start()
        os.close(writing)
        time.sleep(0.002 * (attempt % 10))
        writer.kill()
        writer.join()
        with os.fdopen(reading) as acknowledged:
            whole = [line for line in acknowledged if line.endswith("\n")]
        journal.append(path, b'{"writer": "between", "number": 0}')
        actual = numbers_by(str(attempt), path)
        assert actual[: len(whole)] == list(range(len(whole)))
        assert len(actual) <= len(whole) + 1, "at most the row under way was written unacknowledged"
    assert len(numbers_by("between", path)) == num_kills


def test_a_full_disk_spoils_no_line_and_no_file(tmp_path):
    """The fourth line of 300 bytes would pass the limit of 1,000: the kernel takes 100 of them."""
    lines, other = tmp_path / "file.jsonl", tmp_path / "file.json"
    full = r"cannot be written \(File too large\); free space there"
    with limited_files(1000):
        for _ in range(3):
            journal.append(lines, b"x" * 299)
        with pytest.raises(DataError, match=full):
            journal.append(lines, b"x" * 299)
        with pytest.raises(DataError, match=full):
            journal.replace(other, "x" * 100_000)
        assert not other.exists()
        journal.replace(other, "whole")
        with pytest.raises(DataError, match=full):
            journal.replace(other, "x" * 100_000)
    assert lines.read_bytes() == (b"x" * 299 + b"\n") * 3
    assert other.read_text() == "whole"
    assert {path.name for path in tmp_path.iterdir()} == {".lock", "file.json", "file.jsonl"}


def test_what_cannot_be_written_is_one_line(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(DataError, match=r"file: cannot be written \(File exists\)"):
        journal.append(tmp_path / "file" / "turns.jsonl", b"x")
    with pytest.raises(DataError, match="cannot be written"), journal.locked(Path("/proc/nowhere")):
        pass
    with pytest.raises(DataError, match=r"nowhere: cannot be read \(No such file"):
        journal.read(tmp_path / "nowhere")
    (tmp_path / ".rows.jsonl.lock").mkdir()
    wrong = pytest.raises(DataError, match=r"\.rows\.jsonl\.lock: cannot be written")
    with wrong, journal.alone(tmp_path / "rows.jsonl"):
        pass


def test_a_file_system_without_locks_is_written_all_the_same(tmp_path, monkeypatch):
    def no_lock(*_: object) -> None:
        raise NotImplementedError

    monkeypatch.setattr(FileLock, "acquire", no_lock)
    journal.append(tmp_path / "file", b"x")
    assert (tmp_path / "file").read_bytes() == b"x\n"


def test_a_lock_that_another_holds_is_named(tmp_path, monkeypatch):
    monkeypatch.setattr(journal, "WAIT_SECONDS", 0.1)
    rows = tmp_path / "rows.jsonl"
    held = pytest.raises(DataError, match=r"/\.lock: another process holds it .* or remove the fi")
    with FileLock(tmp_path / ".lock"), held:
        journal.append(rows, b"x")
    busy = pytest.raises(DataError, match=r"another process is .* remove .*\.rows\.jsonl\.lock")
    with journal.alone(rows), busy, journal.alone(rows):
        pass


@pytest.mark.parametrize("name", ["symbolic", "dangling", "hard", "pipe"])
def test_nothing_is_written_through_a_link(name, tmp_path):
    elsewhere, folder = tmp_path / "elsewhere", tmp_path / "folder"
    elsewhere.write_bytes(b"theirs")
    folder.mkdir()
    (folder / "symbolic").symlink_to(elsewhere)
    (folder / "dangling").symlink_to(tmp_path / "nowhere")
    (folder / "hard").hardlink_to(elsewhere)
    (folder / ".partial").symlink_to(elsewhere)
    os.mkfifo(folder / "pipe")
    with pytest.raises(DataError, match=rf"{name}: (cannot be written|is no file of its own)"):
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
@pytest.mark.parametrize("read", [journal.read, lambda path: [*journal.lines(path)]])
def test_what_is_no_file_is_not_read(name: str, read: Callable[[Path], object], tmp_path: Path):
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(DataError, match=r"(no regular file|cannot be read .*); check the path"):
        read(tmp_path / name)


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b'{"a": "\\ud800"}', "half a character"),
        (b'{"\\uDFFF": 1}', "half a character"),
        (b"[" * 10**5, "nested too deep"),
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
