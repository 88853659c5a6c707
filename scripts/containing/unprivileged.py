"""Commands as a user without any rights, who can read what this Python needs."""

import os
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

_NUMBER = 54321
_NEEDED = (sys.base_prefix, sys.prefix, str(Path(__file__).parents[2]))


def as_nobody(command: Sequence[str]) -> list[str] | None:
    """`command` for a user of that number, in mounts of its own; None where that cannot be.

    Where a folder on the way to Python is root's alone, another stands in its place, with nothing
    in it but what is needed.
    """
    if os.geteuid() != 0 or not all(map(shutil.which, ("unshare", "setpriv", "mount"))):
        return None
    lines = ["set -e"]
    for number, path in enumerate(_closed()):
        held = f"/mnt/{number}"
        needed = [one for one in map(os.path.realpath, _NEEDED) if one.startswith(f"{path}/")]
        lines += [f"mount -t tmpfs -o mode=755 none /mnt; mkdir {held}; mount --bind {path} {held}"]
        lines += [f"mount -t tmpfs -o mode=755 none {path}"]
        for one in needed:
            lines += [f"mkdir -p {one}", f"mount --bind {held}{one.removeprefix(path)} {one}"]
    user = f"setpriv --reuid={_NUMBER} --regid={_NUMBER} --clear-groups"
    lines += [f'exec {user} env -i PATH="$PATH" "$@"']
    return ["unshare", "--mount", "sh", "-c", "\n".join(lines), "sh", *command]


def _closed() -> list[str]:
    """The folders on the way to what is needed that other users may not enter."""
    ways = {way for path in _NEEDED for way in Path(os.path.realpath(path)).parents}
    return sorted(str(way) for way in ways if not way.stat().st_mode & 0o001)
