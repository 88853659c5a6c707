"""The process between the sandbox and a program: it contains the program, and ends all of it.

Standard library only and not imported through `copyspec_eval`: it starts in milliseconds.
"""

import ctypes
import os
import sys

LINUX = sys.platform == "linux"
libc = ctypes.CDLL(None, use_errno=True)


def check(result: int, call: str) -> None:
    """Raise OSError if a call of the C library failed."""
    if result != 0:
        raise OSError(ctypes.get_errno(), f"{call}: {os.strerror(ctypes.get_errno())}")
