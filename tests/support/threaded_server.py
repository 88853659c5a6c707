"""A server in a thread of the test: a context manager."""

import socketserver
import threading
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
