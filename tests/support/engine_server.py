"""An OpenAI-compatible server with an engine of its own: a random language model, and faults.

The model's next token is a function of the prompt and the tokens so far. A `Fault` changes what the
engine makes of it, as a bug in an inference engine would.
"""

import hashlib
import json
import math
import random
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from http.server import ThreadingHTTPServer
from typing import Any

from threaded_server import Handler, InThread

END = "</s>"
_VOCABULARY, _CANDIDATES, _LISTED = 4000, 40, 20
Logits = dict[str, float]


def random_of(*parts: object) -> random.Random:
    return random.Random(hashlib.sha256(repr(parts).encode()).digest())


def logits(prompt: str, tokens: Sequence[str]) -> Logits:
    """Of the likeliest tokens after `tokens`; the end comes after 12 to 30 of them."""
    source = random_of(prompt, *tokens)
    names = [f" w{number}" for number in source.sample(range(_VOCABULARY), _CANDIDATES)]
    values = dict(zip(names, (source.gauss(0, 2.5) for _ in names), strict=True))
    if len(tokens) >= random_of("length", prompt).randint(12, 30):
        values[END] = 20.0
    return values


def ranked(values: Logits) -> list[str]:
    return sorted(values, key=lambda name: -values[name])


@dataclass
class Request:
    """What an engine is asked, how often it was asked this before, and what it does meanwhile."""

    prompt: str
    max_tokens: int
    stops: Sequence[str]
    times: int
    number: int
    previous: str
    tokens: list[str] = field(default_factory=list)
    tops: list[Logits] = field(default_factory=list)


class Engine:
    """Greedy decoding, with rounding of a known size; a subclass overrides what it does wrong."""

    def __init__(self, noise: float = 0.0) -> None:
        self.noise = noise

    def logits(self, request: Request) -> Logits:
        values = logits(request.prompt, request.tokens)
        if self.noise:
            rounding = random_of(request.number, len(request.tokens))
            values = {n: v + rounding.uniform(-self.noise, self.noise) for n, v in values.items()}
        return values

    def choose(self, request: Request, values: Logits) -> str:
        return ranked(values)[0]

    def generate(self, request: Request) -> tuple[str, str]:
        """Text and reason of its end; fills the request's tokens and log-probabilities."""
        reason = "length"
        while len(request.tokens) < request.max_tokens:
            values = self.logits(request)
            token = self.choose(request, values)
            request.tokens.append(token)
            request.tops.append(logprobs(values))
            if token == END:
                reason = "stop"
                break
            if any(stop in "".join(request.tokens) for stop in request.stops):
                reason = "stop"
                break
        text = "".join(token for token in request.tokens if token != END)
        for stop in request.stops:
            text = text.partition(stop)[0]
        return text, reason


def logprobs(values: Logits) -> Logits:
    total = math.log(math.fsum(math.exp(value) for value in values.values()))
    return {name: values[name] - total for name in ranked(values)[:_LISTED]}


class EngineServer(InThread, ThreadingHTTPServer):
    """A context manager.

    Attributes:
        count: answers given, and `bodies` what they were asked for.
        misbehave: called with a handler and the number of the request; True if it has answered.
        lists: whether it gives log-probabilities.
        goes_on: whether it continues a chat's last message.
    """

    request_queue_size = 64

    def __init__(self, engine: Engine, lists: bool = True, goes_on: bool = True) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.engine, self.lists, self.goes_on = engine, lists, goes_on
        self.count, self.previous = 0, ""
        self.times: dict[str, int] = {}
        self.bodies: list[dict[str, Any]] = []
        self.lock = threading.Lock()
        self.misbehave: Callable[[Any, int], bool] = lambda handler, number: False

    @property
    def side(self) -> str:
        return f"base_url={self.url},model=M,timeout=5"


class _Handler(Handler):
    server: EngineServer

    def do_GET(self) -> None:
        facts: dict[str, Any] = {
            "/v1/models": {"data": [{"id": "M", "owned_by": "vllm"}]},
            "/version": {"version": "0.0.test", "api_key": "very-secret-key"},
        }
        content = facts.get(self.path)
        self.send(json.dumps(content or {}).encode(), 200 if content else 404)

    def do_POST(self) -> None:
        body, server = self.body(), self.server
        is_chat = self.path.endswith("/chat/completions")
        prompt = begun = ""
        if is_chat:
            messages = body["messages"]
            if body.get("continue_final_message") and server.goes_on:
                begun, messages = messages[-1]["content"], messages[:-1]
            prompt = "".join(f"<{each['role']}>{each['content']}" for each in messages) + "<answer>"
        else:
            prompt, answer, begun = body["prompt"].rpartition("<answer>")
            prompt += answer
        with server.lock:
            number, server.count = server.count, server.count + 1
            times, server.times[prompt] = (
                server.times.get(prompt, 0),
                server.times.get(prompt, 0) + 1,
            )
            previous, server.previous = server.previous, prompt
            server.bodies.append(body)
        if server.misbehave(self, number):
            return
        stops = body.get("stop") or ()
        tokens = [f" {word}" for word in begun.split(" ") if word]
        request = Request(prompt, body["max_tokens"] + len(tokens), stops, times, number, previous)
        request.tokens, start = tokens, len(tokens)
        text, reason = server.engine.generate(request)
        text = text[len(begun) :]
        request.tokens = request.tokens[start:]
        content = _completion(is_chat, text, reason, request, server.lists and body.get("logprobs"))
        self.send(json.dumps(content).encode())


def _completion(
    is_chat: bool, text: str, reason: str, request: Request, listed: object
) -> dict[str, Any]:
    usage = {"prompt_tokens": len(request.prompt.split()), "completion_tokens": len(request.tokens)}
    choice: dict[str, Any] = {"index": 0, "finish_reason": reason, "logprobs": None}
    pairs = list(zip(request.tokens, request.tops, strict=False))
    if is_chat:
        choice["message"] = {"role": "assistant", "content": text}
        if listed:
            content = [
                {
                    "token": token,
                    "logprob": top.get(token, -20.0),
                    "top_logprobs": [{"token": n, "logprob": v} for n, v in top.items()],
                }
                for token, top in pairs
            ]
            choice["logprobs"] = {"content": content}
    else:
        choice["text"] = text
        if listed:
            choice["logprobs"] = {
                "tokens": request.tokens,
                "token_logprobs": [top.get(token, -20.0) for token, top in pairs],
                "top_logprobs": [top for _, top in pairs],
            }
    return {"choices": [choice], "usage": usage}


def hangs(handler: Any, number: int) -> None:
    time.sleep(30)
