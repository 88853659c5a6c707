"""An OpenAI-compatible chat server in a thread of the test, that answers with given texts."""

from collections.abc import Callable
from typing import Any

from judge_server import JudgeServer, Reply

Messages = list[dict[str, str]]


class ChatServer(JudgeServer):
    """Answers a conversation with `reply(messages)`; a context manager."""

    def __init__(self, reply: Callable[[Messages], str]) -> None:
        super().__init__(lambda prompt, times: Reply(""))
        self.reply = reply

    @property
    def chat_url(self) -> str:
        """Where conversations are posted: lm-eval's `base_url`."""
        return f"{self.url}/chat/completions"

    def answer(self, body: dict[str, Any], times: int) -> Reply:
        return Reply(self.reply(body["messages"]))
