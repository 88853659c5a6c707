"""Right solutions that are hard to judge: what is in each function is run by itself."""

import atexit
import enum
import itertools
import logging
import os
import signal
import sys
import tempfile
import threading
import time
import warnings
from collections import Counter, defaultdict
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import ClassVar


def approximate():
    """Finds a zero by halving an interval, to ten digits."""

    def find_zero(coefficients):
        def value(x):
            return sum(factor * x**power for power, factor in enumerate(coefficients))

        low, high = -1000.0, 1000.0
        while high - low > 1e-10:
            middle = (low + high) / 2
            low, high = (low, middle) if value(low) * value(middle) <= 0 else (middle, high)
        return low


def busy():
    """Is an object that prints, from a thread and at its end too, warns, logs, uses the alarm that
    a test may use for its limit, 20,000 frames, processes, threads, files and big numbers, empties
    its argument, and returns integers of other types; a script's ending reads input and exits."""
    import numpy

    global total
    atexit.register(print, "the end")
    logging.basicConfig(level="DEBUG")
    warnings.simplefilter("always")
    sys.setrecursionlimit(10**6)
    cached = lru_cache(sum)

    def chatter():
        while True:
            print("still here", flush=True)
            time.sleep(0.001)

    def depth(number):
        return 0 if number == 0 else depth(number - 1)

    @dataclass(order=True)
    class Total:
        calls: "int" = 0
        large: "ClassVar[int]" = 10**100_000

        def __call__(self, numbers):
            self.calls += 1
            for stream in (sys.stdout, sys.stderr) * 8:
                print("x" * (1 << 20), file=stream)
            warnings.warn("slow", stacklevel=1)
            logging.error("wrong?")
            signal.signal(signal.SIGALRM, lambda *given: None)
            signal.setitimer(signal.ITIMER_REAL, 0.05)
            signal.pause()
            if os.fork() == 0:
                os._exit(7)
            assert os.waitstatus_to_exitcode(os.wait()[1]) == 7
            os.chdir(tempfile.mkdtemp())
            Path("numbers").write_text(" ".join(map(str, numbers)))
            with ThreadPoolExecutor(3) as pool:
                read = [*pool.map(int, Path("numbers").read_text().split())]
            assert read == [numbers.pop(0) for _ in read]
            result = cached((self.large, *read)) - self.large + depth(20_000)
            return numpy.int64(result) if self.calls % 2 else enum.IntEnum("A", {"B": result}).B

    threading.Thread(target=chatter, daemon=True).start()
    total = Total()
    if __name__ == "__main__":
        print(total([int(word) for word in input().split()]))
        sys.exit(1)


def counts_of_other_types():
    """Returns a defaultdict of numpy's integers, a Counter and a dict with keys of a class of its
    own, in turn."""
    import numpy

    class Word(str):
        def __str__(self):
            return "a word"

    def integers(counts):
        return defaultdict(int, {word: numpy.int64(count) for word, count in counts.items()})

    def named(counts):
        return {Word(word): count for word, count in counts.items()}

    kinds = itertools.cycle((integers, Counter, named))

    def words(text):
        return next(kinds)(Counter(text.split()))


def numbers_of_other_types():
    """Returns numbers of numpy's, fractions and decimal numbers, in turn."""
    import decimal
    import fractions

    import numpy

    kinds = itertools.cycle((numpy.float64, fractions.Fraction, decimal.Decimal))

    def half(number):
        return next(kinds)(number) / 2


def without_streams():
    """Is slow to load, closes all three streams, and takes away the modules and names of what runs
    it."""
    global json, encode, decode, solution, values
    sys.stdout.close()
    sys.stderr = sys.stdin = json = encode = decode = solution = values = None
    for descriptor in (0, 1, 2):
        os.close(descriptor)
    sys.modules["json"] = sys.modules["solution"] = None
    time.sleep(1.5)

    def main():
        raise RuntimeError

    def total(numbers):
        return sum(numbers)
