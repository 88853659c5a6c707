"""JSON-lines files that several processes append to, and that no kill or full disk can spoil."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

from filelock import FileLock, Timeout

from copyspec_eval.errors import DataError

_LOCK = ".lock"


class Line(NamedTuple):
    """A line of a file, without its end; `number` counts from 1."""

    number: int
    content: bytes


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Make `folder` if it is not there, and hold the lock under which anything in it is written.

    Where the file system has no locks, there is none, and one process at a time may write.

    Raises:
        DataError: nothing can be written there, here or within.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with ExitStack() as stack:
            with suppress(NotImplementedError):
                stack.enter_context(FileLock(folder / _LOCK, is_singleton=True))
            yield
    except OSError as error:
        raise _unwritable(error.filename or folder, error) from error


@contextmanager
def alone(path: Path) -> Iterator[None]:
    """Keep other processes, and other callers here, from working on `path` at the same time.

    Raises:
        DataError: another one does; or as `locked`.
    """
    with locked(path.parent):
        lock = FileLock(path.with_name(f".{path.name}.lock"))
    with ExitStack() as stack:
        try:
            with suppress(NotImplementedError):
                stack.enter_context(lock.acquire(blocking=False))
        except Timeout:
            raise DataError(
                f"{path}: another process is writing it; wait until that has ended"
            ) from None
        except OSError as error:
            raise _unwritable(Path(lock.lock_file), error) from error
        yield


def _unwritable(path: Path | str, error: OSError) -> DataError:
    return DataError(
        f"{path}: cannot be written ({error.strerror}); free space there, or choose another folder"
    )


def append(path: Path, line: bytes) -> None:
    """Append one line, which holds no line break, and its end: all of it, or nothing.

    What a kill left of the last line is given an end first, so that two lines are never glued.

    Raises:
        DataError: it cannot be written; the file is then as it was.
    """
    with locked(path.parent):
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            _append(descriptor, line + b"\n")
        finally:
            os.close(descriptor)


def _append(descriptor: int, content: bytes) -> None:
    size = os.lseek(descriptor, 0, os.SEEK_END)
    if size and os.pread(descriptor, 1, size - 1) != b"\n":
        content = b"\n" + content
    written = 0
    try:
        # A nearly full disk takes a part, and only the number of bytes shows it.
        while written < len(content):
            written += os.write(descriptor, content[written:])
    except OSError:
        os.ftruncate(descriptor, size)
        raise


def lines(path: Path) -> Iterator[Line]:
    """All lines but empty ones, also a last one without an end.

    Raises:
        DataError: the file cannot be read.
    """
    try:
        with path.open("rb") as file:
            for number, line in enumerate(file, start=1):
                if content := line.rstrip(b"\r\n"):
                    yield Line(number, content)
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror}); check the path") from error


def replace(path: Path, text: str) -> None:
    """Give `path` another content, as a whole or not at all.

    Raises:
        DataError: it cannot be written; the file is then as it was.
    """
    partial = path.with_name(f"{path.name}.partial")
    with locked(path.parent):
        try:
            partial.write_text(text, encoding="utf-8")
            partial.replace(path)
        finally:
            partial.unlink(missing_ok=True)
