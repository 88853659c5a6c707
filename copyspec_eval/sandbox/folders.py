"""Temporary folders for programs, removed by a later process where this one is killed."""

from __future__ import annotations

import fcntl
import os
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path

_PREFIX = "copyspec-program-"


@contextmanager
def temporary_folder() -> Iterator[str]:
    """A new folder, removed afterwards with whatever is in it."""
    _sweep()
    folder = tempfile.mkdtemp(prefix=f"{_PREFIX}{os.getpid()}-")
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        with suppress(OSError):  # some file systems have no locks
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield folder
    finally:
        os.close(descriptor)
        _remove(folder)


@cache
def _sweep() -> None:
    """Remove the folders of processes that were killed.

    The lock of a folder in use holds in every container that shares it, where process numbers mean
    nothing. The number covers the moment before the lock is taken.
    """
    for folder in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*-*"):
        with suppress(OSError):
            descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                process = Path("/proc", folder.name.split("-")[2])
                if os.fstat(descriptor).st_uid == os.geteuid() and not process.exists():
                    _remove(str(folder))
            finally:
                os.close(descriptor)


def _remove(folder: str) -> None:
    """By commands that remove any depth, and unreadable files."""
    for command in (["chmod", "-R", "u+rwx"], ["rm", "-rf"]):
        subprocess.run([*command, folder], check=False, capture_output=True)
