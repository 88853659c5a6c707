"""A server in a thread of the test: a context manager."""

import json
import socketserver
import threading
from http.server import BaseHTTPRequestHandler
from typing import Any, TypeVar

_Server = TypeVar("_Server", bound="InThread")


class InThread(socketserver.ThreadingTCPServer):
    """What such servers share."""

    daemon_threads = True
    block_on_close = False
    allow_reuse_address = True

    @property
    def url(self) -> str:
        """What clients of the OpenAI library take as their base."""
        return f"http://127.0.0.1:{self.server_address[1]}/v1"

    def __enter__(self: _Server) -> _Server:
        threading.Thread(target=self.serve_forever, args=(0.005,), daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self.shutdown()
        self.server_close()

    def handle_error(self, *_: Any) -> None:
        """Silent: clients give up, or are killed."""


class Handler(BaseHTTPRequestHandler):
    """Silent; takes and sends JSON."""

    def body(self) -> Any:
        return json.loads(self.rfile.read(int(self.headers["Content-Length"])))

    def send(self, content: bytes, status: int = 200, missing: int = 0) -> None:
        """Send an answer; its header promises `missing` bytes more."""
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content) + missing))
        self.send_header("retry-after-ms", "1")  # so that tests need not wait
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_: Any) -> None:
        """Silent."""
