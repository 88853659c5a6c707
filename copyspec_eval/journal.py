"""File access in folders that others may have made: no pipes, no links; a kill corrupts nothing."""

import json
import os
import stat
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO

from filelock import FileLock, Timeout

from copyspec_eval.errors import DataError

WAIT_SECONDS = 60.0
"""How long to wait for a lock, held during a write; without flock, its file alone is the lock."""

_LOCK, _PARTIAL = ".lock", ".partial"


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Make `folder`, and hold its lock for writing; without locks, only one process may write."""
    lock = folder / _LOCK
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with ExitStack() as stack:
            with suppress(NotImplementedError):
                stack.enter_context(FileLock(lock, WAIT_SECONDS, is_singleton=True))
            yield
    except Timeout:
        reason = f"another process holds it for over {WAIT_SECONDS:g} s"
        remedy = "wait until that has ended, or remove the file if there is none"
        raise DataError(f"{lock}: {reason}; {remedy}") from None
    except OSError as error:
        raise _unwritable(error.filename or folder, error) from error


@contextmanager
def alone(path: Path) -> Iterator[None]:
    """Keep other processes, and other callers here, from working on `path` at the same time."""
    with locked(path.parent):
        lock = FileLock(path.with_name(f".{path.name}.lock"))
    with ExitStack() as stack:
        try:
            with suppress(NotImplementedError):
                stack.enter_context(lock.acquire(blocking=False))
        except Timeout:
            remedy = f"wait until that has ended, or remove {lock.lock_file} if there is none"
            raise DataError(f"{path}: another process is writing it; {remedy}") from None
        except OSError as error:
            raise _unwritable(Path(lock.lock_file), error) from error
        yield


def _unwritable(path: Path | str, error: OSError) -> DataError:
    remedy = "free space there, or choose another folder"
    return DataError(f"{path}: cannot be written ({error.strerror}); {remedy}")


def append(path: Path, line: bytes) -> None:
    """Append one line, whole or not at all, after ending any line that a kill left unfinished."""
    with locked(path.parent):
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o644)
        with os.fdopen(descriptor, "r+b", buffering=0) as file:
            status = os.fstat(descriptor)
            if not stat.S_ISREG(status.st_mode) or status.st_nlink > 1:
                remedy = "remove it, or choose another folder"
                raise DataError(f"{path}: is a link or not a regular file; {remedy}")
            size = status.st_size
            torn = size and os.pread(descriptor, 1, size - 1) != b"\n"
            content = (b"\n" if torn else b"") + line + b"\n"
            file.seek(size)
            try:
                # A nearly full disk takes a part, and only the number of bytes shows it.
                while content:
                    content = content[file.write(content) :]
            except OSError:
                file.truncate(size)
                raise


def replace(path: Path, content: str | bytes) -> None:
    """Give `path` another content, as a whole or not at all; it also replaces a link."""
    if isinstance(content, str):
        content = content.encode(errors="backslashreplace")
    partial = path.with_name(_PARTIAL)
    with locked(path.parent):
        try:
            partial.unlink(missing_ok=True)
            with partial.open("xb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            partial.replace(path)
        finally:
            with suppress(OSError):
                partial.unlink(missing_ok=True)


def subfolder(folder: Path, *names: str) -> Path:
    """The folder of these names below `folder`, made if it is missing; no link leads there."""
    try:
        for name in names:
            folder /= name
            if folder.is_symlink():
                raise DataError(f"{folder}: is a link; remove it, or choose another folder")
            folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise _unwritable(folder, error) from error
    return folder


def read(path: Path) -> bytes:
    with _opened(path) as file:
        return file.read()


def lines(path: Path) -> Iterator[tuple[int, bytes]]:
    """Lines that are not empty, without their ends, each with its number from 1."""
    with _opened(path) as file:
        for number, line in enumerate(file, start=1):
            if content := line.rstrip(b"\r\n"):
                yield number, content


@contextmanager
def _opened(path: Path) -> Iterator[BinaryIO]:
    try:
        # A pipe would be waited for until somebody writes to it.
        with open(path, "rb", opener=lambda name, how: os.open(name, how | os.O_NONBLOCK)) as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                raise DataError(f"{path}: is not a regular file; check the path")
            yield file
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror}); check the path") from error


def parsed(content: bytes) -> Any:
    """The value of a JSON text that others wrote; ValueError if it is not JSON."""
    try:
        value = json.loads(content.decode())
        # A lone surrogate cannot be printed, written or hashed.
        if b"\\ud" in content.lower():
            json.dumps(value, ensure_ascii=False).encode()
    except UnicodeDecodeError as error:
        raise ValueError("not UTF-8") from error
    except UnicodeEncodeError as error:
        raise ValueError("a lone surrogate such as \\ud83d") from error
    except RecursionError as error:
        raise ValueError("nested too deeply") from error
    return value
