"""Wrong solutions that try to be taken for right: what is in each function is run by itself."""

import atexit
import builtins
import contextlib
import ctypes
import gc
import json
import math
import operator
import os
import sys
import time
from pathlib import Path

VERDICT = b'\n{"base": true, "plus": true}\n'


def _write_to_all(text, first=0):
    for descriptor in range(first, 64):
        with contextlib.suppress(OSError):
            os.write(descriptor, text)


def _callers():
    frames = [sys._getframe()]
    while frames[-1].f_back:
        frames.append(frames[-1].f_back)
    return frames


def _named_by_callers(*names):
    for name in names:
        for frame in _callers():
            known = {**frame.f_globals, **frame.f_locals}
            if name in known:
                yield known[name]


def _solve(problem, numbers):
    names = {}
    exec(problem["prompt"] + problem["canonical_solution"], names)
    return names["total"](numbers)


def _in_memory(numbers):
    dicts = [each for each in gc.get_objects() if isinstance(each, dict)]
    return _solve(next(each for each in dicts if "canonical_solution" in each), numbers)


def _in_other_processes(numbers):
    for path in Path("/proc").glob("[0-9]*/fd/*"):
        with contextlib.suppress(OSError), path.open("rb") as file:
            if b"canonical_solution" in file.read(1 << 20):
                return sum(numbers)
    raise LookupError


def _in_evalplus(numbers):
    from evalplus.data import get_human_eval_plus

    return _solve(get_human_eval_plus()["HumanEval/0"], numbers)


def _true(*given):
    return True


def _zero(*given, **more):
    return 0.0


def answers_in_advance():
    """Answers on every socket before it is asked."""
    _write_to_all(b'{"value": null}\n{"value": true}\n{"value": 1}\n' * 50, first=3)

    def total(numbers):
        return 0


def code_among_the_values():
    """Answers with JSON that names a type that no value has, and code."""
    answer = '{"value": {"numpy": ["object", "__import__(\'os\')._exit(0)"]}}'
    json.dumps = lambda *given, **more: answer

    def total(numbers):
        return 0


def codec_replaced():
    """Replaces what encodes its result by something that claims to be right."""

    def total(numbers):
        for module in [*sys.modules.values()]:
            for name in ("encode", "dumps"):
                if callable(getattr(module, name, None)):
                    setattr(module, name, lambda *given, **more: VERDICT.decode())
        answer = '{"value": {"unknown": null}, "base": true, "plus": true}'
        json.dumps = lambda *given, **more: answer
        return 0


def comparisons_replaced():
    """Replaces the functions that a test compares with."""
    operator.eq = builtins.all = _true
    math.isclose = math.fabs = builtins.abs = _zero
    sys.modules["evalplus.eval"] = sys.modules["evalplus"] = sys

    def half(number):
        return 12345.0


def endless_answer():
    """Answers with more than any judge could keep in memory."""

    def total(numbers):
        for descriptor in range(3, 64):
            with contextlib.suppress(OSError):
                while True:
                    os.write(descriptor, b'{"value": [' + b"1," * (1 << 20))
        return 0


def expected_elsewhere():
    """Sets what EvalPlus keeps its results in, wherever a caller has it; returns what is expected,
    from memory, from other processes' files, from EvalPlus's data, or as a caller holds it."""

    def total(numbers):
        for results in _named_by_callers("stat", "details", "progress"):
            with contextlib.suppress(AttributeError):
                results.value = 0
        for look in (_in_memory, _in_other_processes, _in_evalplus):
            with contextlib.suppress(BaseException):
                return look(numbers)
        return next(_named_by_callers("exp", "expected", "wanted"), 0)


def float_that_equals_all():
    """Returns a float that says that it equals everything."""

    class Equal(float):
        __hash__ = float.__hash__
        __eq__ = _true
        __ne__ = __sub__ = __rsub__ = _zero

    def half(number):
        return Equal(12345)


def object_that_lies_about_its_class():
    """Returns an object that equals everything, and whose class it says is the right one."""

    class Equal:
        __class__ = float
        __eq__ = _true
        __abs__ = __float__ = _zero

        def __array__(self, *arguments, **more):
            raise RuntimeError

    def half(number):
        return Equal()


def prints_what_it_can_see():
    """Prints the constants of the code that called it and all that can be read from descriptors, in
    case one is a secret of the judge's, and ends well."""
    print(*(constant for frame in _callers() for constant in frame.f_code.co_consts), sep="\n")
    for descriptor in range(64):
        with contextlib.suppress(OSError):
            print(os.pread(descriptor, 1 << 20, 0).decode(errors="replace"))

    def total(numbers):
        os._exit(0)


def verdict_after_the_end():
    """Leaves a process behind that goes on writing verdicts, and writes one when it ends."""
    atexit.register(_write_to_all, VERDICT)
    if os.fork() == 0:
        while True:
            _write_to_all(VERDICT)
            time.sleep(0.01)

    def total(numbers):
        raise SystemExit(0)


def verdict_during_a_call():
    """Writes a verdict wherever it can write, also past Python, and kills the process above."""

    def total(numbers):
        _write_to_all(VERDICT)
        libc = ctypes.CDLL(None)
        text = b'{"solution": "forged", "base": true, "plus": true}\n'
        libc.write(1, text, len(text))
        libc.kill(os.getppid(), 9)
        libc._exit(0)
