"""What hostile programs have in common; `containing.programs` puts it in front of each."""

import contextlib
import ctypes
import errno
import os
import platform
from pathlib import Path

libc = ctypes.CDLL(None, use_errno=True)


def _none(attempt, cases, errors=OSError):
    """Whether it raised such an error or returned False for all of them."""
    succeeded = 0
    for case in cases:
        with contextlib.suppress(errors):
            succeeded += attempt(case) is not False
    return not succeeded


def _none_succeeds(*attempts):
    return _none(lambda attempt: attempt(), attempts)


def _none_opens(flags, *paths):
    return _none(lambda path: os.close(os.open(path, flags)), paths)


def _make_in(folder):
    path = f"{folder}/hostile-{os.getpid()}"
    open(path, "x").close()
    os.remove(path)


def _lines(path):
    try:
        return Path(path).read_text().splitlines()
    except OSError:
        return []


def _call(number_on_x86_64, number_on_aarch64, *arguments):
    number = {"x86_64": number_on_x86_64, "aarch64": number_on_aarch64}[platform.machine()]
    words = (number, *arguments)
    return libc.syscall(*(ctypes.c_long(word) if isinstance(word, int) else word for word in words))


def _no_call(*calls):
    """Whether the kernel answers none of them, each with its two numbers and its arguments."""
    answers = set()
    for call in calls:
        ctypes.set_errno(0)
        _call(*call)
        answers.add(ctypes.get_errno())
    return answers <= {errno.EPERM, errno.ENOSYS}


def _fails_in_child(attempt):
    child = os.fork()
    if child == 0:
        with contextlib.suppress(OSError):
            os._exit(not attempt())
        os._exit(1)
    return os.waitpid(child, 0)[1] != 0
