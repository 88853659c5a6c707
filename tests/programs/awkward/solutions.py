"""Right solutions that are hard to judge: what is in each function is run by itself."""

import atexit
import logging
import os
import signal
import sys
import tempfile
import threading
import time
import warnings
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import ClassVar


def alarm_of_its_own():
    """Uses the alarm that a test may use for its limit."""

    def total(numbers):
        signal.signal(signal.SIGALRM, lambda *given: None)
        signal.setitimer(signal.ITIMER_REAL, 0.05)
        signal.pause()
        return sum(numbers)


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


def callable_object():
    """Is an object that can be called, with a cache and a count of calls."""
    global total

    class Total:
        calls = 0
        cached = staticmethod(lru_cache(sum))

        def __call__(self, numbers):
            self.calls += 1
            return self.cached(tuple(numbers))

    total = Total()


def closes_its_streams():
    """Closes its output, and then all three streams."""
    sys.stdout.close()
    sys.stderr = sys.stdin = None
    for descriptor in (0, 1, 2):
        os.close(descriptor)

    def total(numbers):
        return sum(numbers)


def dataclass_with_late_annotations():
    """Has a dataclass whose annotations are strings."""

    @dataclass(order=True)
    class Sum:
        of: "list[int]"
        start: "ClassVar[int]" = 0

        def result(self) -> "int":
            return sum(self.of, self.start)

    def total(numbers):
        return Sum(numbers).result()


def deep_recursion():
    """Recurses 20,000 deep."""
    sys.setrecursionlimit(10**6)

    def depth(number):
        return 0 if number == 0 else depth(number - 1)

    def total(numbers):
        return sum(numbers) + depth(20_000)


def default_dict():
    """Returns a defaultdict of numpy's integers."""
    import numpy

    def words(text):
        counts = defaultdict(lambda: numpy.int64(0))
        for word in text.split():
            counts[word] += 1
        return counts


def files_and_folders():
    """Works in a folder of its own, with a file."""

    def total(numbers):
        os.chdir(tempfile.mkdtemp())
        Path("numbers").write_text(" ".join(map(str, numbers)))
        return sum(map(int, Path("numbers").read_text().split()))


def guarded_main():
    """Has a script's ending, which reads input and exits."""

    def total(numbers):
        return sum(numbers)

    if __name__ == "__main__":
        print(total([int(word) for word in input().split()]))
        sys.exit(1)


def prints_a_lot():
    """Prints 8 MiB to both streams at every call."""

    def total(numbers):
        for stream in (sys.stdout, sys.stderr) * 8:
            print("x" * (1 << 20), file=stream)
        return sum(numbers)


def prints_at_exit():
    """Prints when its process ends, and from a thread that goes on."""
    atexit.register(print, "the end")

    def chatter():
        while True:
            print("still here", flush=True)
            time.sleep(0.001)

    threading.Thread(target=chatter, daemon=True).start()

    def total(numbers):
        return sum(numbers)


def string_of_a_subclass():
    """Returns a dict with keys of a class of its own."""

    class Word(str):
        def __str__(self):
            return "a word"

    def words(text):
        return {Word(word): text.split().count(word) for word in text.split()}


def threads_and_processes():
    """Sums in threads and in processes."""

    def total(numbers):
        if os.fork() == 0:
            os._exit(7)
        assert os.waitstatus_to_exitcode(os.wait()[1]) == 7
        with ThreadPoolExecutor(3) as pool:
            return sum(pool.map(int, numbers))


def warns_and_logs():
    """Warns and logs at every call."""
    logging.basicConfig(level="DEBUG")
    warnings.simplefilter("always")

    def total(numbers):
        warnings.warn("slow", stacklevel=1)
        logging.error("wrong?")
        return sum(numbers)
