"""A server in a thread that answers each request with whatever bytes it is given to send."""

import socketserver
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass

from threaded_server import InThread


@dataclass(frozen=True)
class Sent:
    """Bytes that are sent in pieces, `pause` seconds before each; then the connection is closed."""

    pieces: tuple[bytes, ...]
    pause: float = 0.0


class HostileServer(InThread):
    """A context manager; the nth request is answered with `replies[n]`, the last one for good.

    Attributes:
        num_requests: how many were read.
    """

    def __init__(self, replies: Sequence[Sent]) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.replies = replies
        self.num_requests = 0
        self.lock = threading.Lock()


class _Handler(socketserver.StreamRequestHandler):
    server: HostileServer

    def handle(self) -> None:
        length = 0
        while (line := self.rfile.readline()).strip():
            name, _, value = line.partition(b":")
            length = int(value) if name.lower() == b"content-length" else length
        self.rfile.read(length)
        with self.server.lock:
            number = min(self.server.num_requests, len(self.server.replies) - 1)
            self.server.num_requests += 1
        reply = self.server.replies[number]
        for piece in reply.pieces:
            time.sleep(reply.pause)
            self.wfile.write(piece)
            self.wfile.flush()


def http(body: bytes, *headers: str, status: int = 200, length: int | None = None) -> Sent:
    """A response as HTTP has it, but for what is asked otherwise."""
    lines = [f"HTTP/1.1 {status} So", "Content-Type: application/json", "Connection: close"]
    if length is None or length >= 0:
        lines.append(f"Content-Length: {len(body) if length is None else length}")
    head = "\r\n".join((*lines, *headers, "", "")).encode()
    return Sent((head + body,))
