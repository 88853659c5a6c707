"""Temporary folders for programs."""

from __future__ import annotations

import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def temporary_folder() -> Iterator[str]:
    """A new folder, removed afterwards by commands that remove any depth, and unreadable files."""
    folder = tempfile.mkdtemp(prefix="copyspec-")
    try:
        yield folder
    finally:
        for command in (["chmod", "-R", "u+rwx"], ["rm", "-rf"]):
            subprocess.run([*command, folder], check=False, capture_output=True)
