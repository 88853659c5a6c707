"""An OpenAI-compatible chat server in a thread of the test, that answers with given texts."""

import json
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from threaded_server import InThread

Messages = list[dict[str, str]]


class ChatServer(InThread, ThreadingHTTPServer):
    """Answers a conversation with `reply(messages)`; a context manager.

    Attributes:
        requests: the bodies asked so far, in order.
        failures: the next so many requests are answered with the status `failure_status`.
    """

    def __init__(self, reply: Callable[[Messages], str]) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.reply = reply
        self.requests: list[dict[str, Any]] = []
        self.failures = 0
        self.failure_status = 500
        self.lock = threading.Lock()

    @property
    def chat_url(self) -> str:
        """Where conversations are posted: lm-eval's `base_url`."""
        return f"{self.url}/chat/completions"

    def fail(self, times: int, status: int = 500) -> None:
        """Answer the next requests with an error."""
        self.failures, self.failure_status = times, status


class _Handler(BaseHTTPRequestHandler):
    server: ChatServer

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        with self.server.lock:
            self.server.requests.append(body)
            failing = self.server.failures > 0
            self.server.failures -= failing
        if failing:
            return self._send(
                self.server.failure_status, {"error": {"message": "failing on purpose"}}
            )
        message = {"role": "assistant", "content": self.server.reply(body["messages"])}
        self._send(
            200,
            {
                "id": "chat",
                "object": "chat.completion",
                "created": 0,
                "model": body["model"],
                "choices": [{"index": 0, "message": message, "finish_reason": "stop"}],
                "usage": {"prompt_tokens": 7, "completion_tokens": 5, "total_tokens": 12},
            },
        )

    def _send(self, status: int, reply: dict[str, Any]) -> None:
        content = json.dumps(reply).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_: Any) -> None:
        """Silent."""
