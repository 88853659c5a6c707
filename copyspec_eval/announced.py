"""Tells the user what is running, when it takes long."""

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

_SECONDS = 2.0


@contextmanager
def announced(what: str) -> Iterator[None]:
    """Print `what` to standard error once it has taken two seconds; also a decorator."""
    timer = threading.Timer(
        _SECONDS, print, [f"copyspec-eval: {what} ..."], {"file": sys.stderr, "flush": True}
    )
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
