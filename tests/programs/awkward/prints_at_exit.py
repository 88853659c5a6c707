"""Prints when its process ends, and from a thread that goes on."""

import atexit
import threading
import time

atexit.register(print, "the end")


def chatter():
    while True:
        print("still here", flush=True)
        time.sleep(0.001)


threading.Thread(target=chatter, daemon=True).start()


def total(numbers):
    return sum(numbers)
