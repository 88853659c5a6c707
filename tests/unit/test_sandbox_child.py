"""How the child process of the sandbox hands its listener over."""

from __future__ import annotations

import errno
import os
import socket
from typing import Any

import pytest

from copyspec_eval.sandbox.child import main as child


def refusing(times: int, number: int) -> Any:
    """`socket.send_fds`, which fails so many times before it sends."""
    left, send_fds = [times], socket.send_fds

    def send(*arguments: Any) -> int:
        if left[0]:
            left[0] -= 1
            raise OSError(number, os.strerror(number))
        return send_fds(*arguments)

    return send


def test_descriptors_of_others_under_way_are_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket, "send_fds", refusing(3, errno.ETOOMANYREFS))
    ours, theirs = socket.socketpair()
    with ours, theirs:
        child.hand_over(theirs, [ours.fileno()])
        sent, [descriptor], *_ = socket.recv_fds(ours, 1, 1)
    assert sent == b"."
    os.close(descriptor)


@pytest.mark.parametrize(
    ("times", "number"), [(1, errno.EPIPE), (1000, errno.ETOOMANYREFS)], ids=["EPIPE", "for long"]
)
def test_other_failures_are_raised(
    monkeypatch: pytest.MonkeyPatch, times: int, number: int
) -> None:
    monkeypatch.setattr(socket, "send_fds", refusing(times, number))
    monkeypatch.setattr(child, "TICK_SECONDS", 0.0)
    ours, theirs = socket.socketpair()
    with ours, theirs, pytest.raises(OSError, match=os.strerror(number)):
        child.hand_over(theirs, [])
