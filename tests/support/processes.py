"""Processes of this machine, found by what stands in their arguments."""

import time
from collections.abc import Callable
from pathlib import Path


def processes_with(text: str) -> list[int]:
    """Processes of this machine that have `text` among their arguments."""
    pids = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if text.encode() in (folder / "cmdline").read_bytes():
                pids.append(int(folder.name))
        except OSError:
            continue
    return pids


def wait_until(condition: Callable[[], bool]) -> None:
    """For at most ten seconds."""
    deadline = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)
