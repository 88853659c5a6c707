"""Between the sandbox and a program; standard library only, it starts in milliseconds."""

import ctypes
import os
import sys

LINUX = sys.platform == "linux"
libc = ctypes.CDLL(None, use_errno=True)


def check(result: int, call: str) -> None:
    """Raise OSError if a call of the C library failed."""
    if result != 0:
        raise OSError(ctypes.get_errno(), f"{call}: {os.strerror(ctypes.get_errno())}")
