"""A model of lm-eval that gives the answers that it was made with."""

from __future__ import annotations

from typing import Any

from lm_eval.api.instance import Instance
from lm_eval.api.model import LM


class Scripted(LM):  # type: ignore[misc]  # lm-eval's classes carry no types
    """Gives these answers in turn, and notes what it was asked."""

    tokenizer_name = "scripted"

    def __init__(self, *answers: str | None) -> None:
        super().__init__()
        self.answers = answers
        self.asked: list[tuple[str, dict[str, Any]]] = []

    def generate_until(self, requests: list[Instance], disable_tqdm: bool = False) -> list[Any]:
        self.asked += [request.args for request in requests]
        return list(self.answers[: len(requests)])

    def apply_chat_template(
        self, chat_history: list[dict[str, str]], add_generation_prompt: bool = True
    ) -> str:
        return "".join(f"<{m['role']}>{m['content']}" for m in chat_history) + "<assistant>"

    def chat_template(self, chat_template: bool | str = False) -> str:
        return "scripted"

    def loglikelihood(self, requests: list[Instance]) -> Any:
        raise NotImplementedError

    loglikelihood_rolling = loglikelihood
