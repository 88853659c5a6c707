"""What hostile programs have in common; `containing.programs` puts it in front of each."""

import contextlib
import ctypes
import os
import platform

libc = ctypes.CDLL(None, use_errno=True)


def _none(attempt, cases, errors=OSError):
    """Whether it raised such an error or returned False for all of them."""
    succeeded = 0
    for case in cases:
        with contextlib.suppress(errors):
            succeeded += attempt(case) is not False
    return not succeeded


def _none_opens(flags, *paths):
    return _none(lambda path: os.close(os.open(path, flags)), paths)


def _make_in(folder):
    path = f"{folder}/hostile-{os.getpid()}"
    open(path, "x").close()
    os.remove(path)


def _call(number_on_x86_64, number_on_aarch64, *arguments):
    numbers = {"x86_64": number_on_x86_64, "aarch64": number_on_aarch64}
    return libc.syscall(numbers[platform.machine()], *arguments)


def _error(number_on_x86_64, number_on_aarch64, *arguments):
    ctypes.set_errno(0)
    _call(number_on_x86_64, number_on_aarch64, *arguments)
    return ctypes.get_errno()


def _fails_in_child(attempt):
    child = os.fork()
    if child == 0:
        with contextlib.suppress(OSError):
            os._exit(not attempt())
        os._exit(1)
    return os.waitpid(child, 0)[1]


def _no_child(child):
    if child == 0:
        os._exit(0)
    if child > 0:
        os.waitpid(child, 0)
    return child < 0
