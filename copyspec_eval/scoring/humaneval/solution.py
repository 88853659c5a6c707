"""Runs one solution for the process that judges it; `scores` starts this module in a sandbox.

The argument is the descriptor of a socket, on which each message is a line of JSON. First comes
`{"sources": […], "entry_point": …}`, then the arguments of one call after another. Each is answered
by `{"value": …}` (null after the first) or `{"error": …}`; a solution can forge nothing else.
"""

import json
import socket
import sys
from collections.abc import Callable
from io import BufferedRWPair
from types import ModuleType
from typing import Any

from copyspec_eval.scoring.humaneval.values import decode, encode

_RECURSION_LIMIT, _REASON_CHARS = 1000, 200


def answer() -> None:
    """Answer until the other end is closed."""
    with socket.socket(fileno=int(sys.argv[1])) as channel, channel.makefile("rwb") as messages:
        first = json.loads(messages.readline())
        solution = ModuleType("solution")
        sys.modules["solution"] = solution

        def load() -> None:
            for source in first["sources"]:
                exec(source, solution.__dict__)

        def call(*arguments: Any) -> Any:
            return getattr(solution, first["entry_point"])(*arguments)

        _send(messages, load)
        for line in messages:
            _send(messages, call, *map(decode, json.loads(line)))


def _send(messages: BufferedRWPair, run: Callable[..., Any], *arguments: Any) -> None:
    try:
        value = run(*arguments)
        # A solution may have set a limit of its own, too low for what follows.
        limit = sys.getrecursionlimit()
        sys.setrecursionlimit(_RECURSION_LIMIT)
        answer = json.dumps({"value": encode(value)})
        sys.setrecursionlimit(limit)
    except BaseException as error:  # also SystemExit and KeyboardInterrupt
        sys.setrecursionlimit(_RECURSION_LIMIT)
        answer = json.dumps({"error": f"{type(error).__name__}: {error}"[:_REASON_CHARS]})
    messages.write(answer.encode() + b"\n")
    messages.flush()
