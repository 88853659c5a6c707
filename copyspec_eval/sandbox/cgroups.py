"""Limits on the memory of all a program's processes together; else each one's is limited alone."""

import os
import re
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from functools import cache
from pathlib import Path
from typing import NamedTuple

_MOUNTED = Path("/sys/fs/cgroup")
_PROBE_BYTES = 2**28
_REMOVE_SECONDS = 1.0
_KILLS = re.compile(r"^oom_kill ([0-9]+)$", re.MULTILINE)

# The shell joins the group and becomes the command, so that nothing is started outside.
_JOIN = 'echo 0 > "$0" && exec "$@"'


class MemoryGroup(NamedTuple):
    """A control group of either version."""

    folder: Path
    limit: str  # the file in it that has the limit in bytes
    events: str  # and that which counts what was killed

    @property
    def prefix(self) -> list[str]:
        """Words in front of a command that make it run in the group."""
        return ["/bin/sh", "-c", _JOIN, str(self.folder / "cgroup.procs")]

    def has_killed(self) -> bool:
        """Whether a process was killed since all together used more than the limit."""
        try:
            kills = _KILLS.search((self.folder / self.events).read_text())
        except OSError:
            return False
        return kills is not None and kills[1] != "0"


def limited_memory(num_bytes: int) -> AbstractContextManager[MemoryGroup | None]:
    """A control group of so much memory, removed afterwards; None where there can be none."""
    parent = _parent()
    return _group(parent, num_bytes) if parent else nullcontext()


@contextmanager
def _group(parent: MemoryGroup, num_bytes: int) -> Iterator[MemoryGroup]:
    folder = Path(tempfile.mkdtemp(prefix=f"copyspec-{os.getpid()}-", dir=parent.folder))
    try:
        (folder / parent.limit).write_text(str(num_bytes))
        with suppress(OSError):  # there may be no swap to limit
            (folder / "memory.swap.max").write_text("0")
        yield parent._replace(folder=folder)
    finally:
        # Its last processes may be just ending.
        deadline = time.monotonic() + _REMOVE_SECONDS
        while time.monotonic() < deadline:
            with suppress(OSError):
                folder.rmdir()
                break
            time.sleep(0.005)


@cache
def _parent() -> MemoryGroup | None:
    """The first group in which another can be made, limited and joined."""
    for parent in _candidates():
        with suppress(OSError, subprocess.SubprocessError):
            with _group(parent, _PROBE_BYTES) as group:
                subprocess.run([*group.prefix, "/bin/true"], check=True, capture_output=True)
            _sweep(parent)
            return parent
    return None


def _sweep(parent: MemoryGroup) -> None:
    """Remove the groups of processes that were killed."""
    for folder in parent.folder.glob("copyspec-*-*"):
        if not Path("/proc", folder.name.split("-")[1]).exists():
            with suppress(OSError):
                folder.rmdir()


def _candidates() -> Iterator[MemoryGroup]:
    """This process's groups; of version 2 the one around, too: one with processes can hold none."""
    try:
        lines = Path("/proc/self/cgroup").read_text().splitlines()
    except OSError:
        return
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers == "memory":
            folder = _MOUNTED / "memory" / path.lstrip("/")
            yield MemoryGroup(folder, "memory.limit_in_bytes", "memory.oom_control")
        elif not controllers:
            group = _MOUNTED / path.lstrip("/")
            for folder in (group, group.parent) if group != _MOUNTED else (group,):
                yield MemoryGroup(folder, "memory.max", "memory.events")
