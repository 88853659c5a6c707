"""Sums in threads and in processes."""

import os
from concurrent.futures import ThreadPoolExecutor


def total(numbers):
    if os.fork() == 0:
        os._exit(7)
    assert os.waitstatus_to_exitcode(os.wait()[1]) == 7
    with ThreadPoolExecutor(3) as pool:
        return sum(pool.map(int, numbers))
