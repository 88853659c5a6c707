"""The process between the sandbox and a program: it contains the program, and ends all of it.

Standard library only and imported as a package of its own, not through `copyspec_eval`: it starts
in milliseconds for every program.
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
