"""An OpenAI-compatible chat server in a thread of the test, that answers with given texts."""

import json
import threading
from collections.abc import Callable
from http.server import ThreadingHTTPServer
from typing import Any

from threaded_server import Handler, InThread

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


class _Handler(Handler):
    server: ChatServer

    def do_POST(self) -> None:
        body = self.body()
        with self.server.lock:
            self.server.requests.append(body)
            failing = self.server.failures > 0
            self.server.failures -= failing
        if failing:
            error = {"error": {"message": "failing on purpose"}}
            return self.send(json.dumps(error).encode(), self.server.failure_status)
        message = {"role": "assistant", "content": self.server.reply(body["messages"])}
        reply = {
            **{"id": "chat", "object": "chat.completion", "created": 0, "model": body["model"]},
            "choices": [{"index": 0, "message": message, "finish_reason": "stop"}],
            "usage": {"prompt_tokens": 7, "completion_tokens": 5, "total_tokens": 12},
        }
        self.send(json.dumps(reply).encode())
