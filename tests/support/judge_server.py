"""OpenAI-compatible servers in a thread: one judges and fails on demand, one sends any bytes."""

import json
import re
import socketserver
import threading
import time
from argparse import Namespace
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import redirect_stdout
from http.server import ThreadingHTTPServer
from io import StringIO
from itertools import chain, repeat
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from threaded_server import Handler, InThread


class Reply(NamedTuple):
    """An answer; `text` is the judgement, or the body if the status is not 200."""

    text: str
    status: int = 200


class JudgeServer(InThread, ThreadingHTTPServer):
    """A context manager that answers `judge(user_prompt, n)` to a prompt asked for the nth time.

    Attributes:
        asked: how often each prompt was asked.
        requests: the bodies, in order.
        authorization: that header of the last request.
    """

    def __init__(self, judge: Callable[[str, int], Reply]) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.judge = judge
        self.asked: Counter[str] = Counter()
        self.requests: list[dict[str, Any]] = []
        self.authorization: str | None = None
        self.lock = threading.Lock()

    def answer(self, body: dict[str, Any], times: int) -> Reply:
        return self.judge(body["messages"][-1]["content"], times)


class _Handler(Handler):
    server: JudgeServer

    def do_POST(self) -> None:
        body, server = self.body(), self.server
        prompt = body["messages"][-1]["content"]
        with server.lock:
            server.requests.append(body)
            server.asked[prompt] += 1
            server.authorization = self.headers["Authorization"]
            times = server.asked[prompt]
        text, status = server.answer(body, times)
        if status == 200:
            message = {"role": "assistant", "content": text}
            text = json.dumps({"choices": [{"index": 0, "message": message}]})
        self.send(text.encode(), status)


class Sent(NamedTuple):
    """Bytes that are sent in pieces, `pause` seconds before each; then the connection is closed."""

    pieces: tuple[bytes, ...]
    pause: float = 0.0


class HostileServer(InThread):
    """A context manager; the nth request is answered with `replies[n]`, the last one for good."""

    def __init__(self, replies: Sequence[Sent]) -> None:
        super().__init__(("127.0.0.1", 0), _RawHandler)
        self.replies = chain(replies, repeat(replies[-1]))


class _RawHandler(socketserver.StreamRequestHandler):
    server: HostileServer

    def handle(self) -> None:
        length = 0
        while (line := self.rfile.readline()).strip():
            name, _, value = line.partition(b":")
            length = int(value) if name.lower() == b"content-length" else length
        self.rfile.read(length)
        reply = next(self.server.replies)
        for piece in reply.pieces:
            time.sleep(reply.pause)
            self.wfile.write(piece)


def http(body: bytes, *headers: str, status: int = 200, length: int | None = None) -> Sent:
    """A response as HTTP has it, but for what is asked otherwise."""
    lines = [f"HTTP/1.1 {status} So", "Content-Type: application/json", "Connection: close"]
    if length is None or length >= 0:
        lines.append(f"Content-Length: {len(body) if length is None else length}")
    return Sent(("\r\n".join((*lines, *headers, "", "")).encode() + body,))


_SINGLE = {"type": "single", "output_format": "[[rating]]"}
_PAIRWISE = {"type": "pairwise", "output_format": "[[A]]"}
_BOTH = "{question_1}|{answer_1}|{question_2}|{answer_2}"
_PAIR = "{question}|{answer_a} or {answer_b}"
_PAIRS = "{question_1}|{question_2}|{answer_a_1}, {answer_a_2} or {answer_b_1}, {answer_b_2}"
_FIRST, _ALL = "|ref {ref_answer_1}", "|ref {ref_answer_1}, {ref_answer_2}"
_KINDS = {
    "single-v1": ("{question}|{answer}", _SINGLE),
    "single-math-v1": ("{question}|{answer}" + _FIRST, _SINGLE),
    "single-v1-multi-turn": (_BOTH, _SINGLE),
    "single-math-v1-multi-turn": (_BOTH + _ALL, _SINGLE),
    "pair-v2": (_PAIR, _PAIRWISE),
    "pair-math-v1": (_PAIR + _FIRST, _PAIRWISE),
    "pair-v2-multi-turn": (_PAIRS, _PAIRWISE),
    "pair-math-v1-multi-turn": (_PAIRS + _ALL, _PAIRWISE),
}
PROMPTS: list[dict[str, str]] = [
    {"name": name, "system_prompt": f"Be {name}.", "prompt_template": text} | kind
    for name, (text, kind) in _KINDS.items()
]
_REFERENCES = [{"question_id": 2, "choices": [{"index": 0, "turns": ["R1", "R2"]}]}]


def write_judge_data(folder: Path) -> Path:
    """`PROMPTS` and a reference answer, laid out as in `COPYSPEC_DATA_DIR`."""
    (folder / "mt_bench").mkdir(parents=True)
    for name, rows in (("judge_prompts", PROMPTS), ("reference_answer_gpt-4", _REFERENCES)):
        text = "".join(json.dumps(row) + "\n" for row in rows)
        (folder / "mt_bench" / f"{name}.jsonl").write_text(text)
    return folder


def shown_by_fastchat(file: Path) -> list[float]:
    """Means of turn 1, turn 2 and both, as FastChat's `show_result` prints them of a file."""
    show_result = pytest.importorskip("fastchat.llm_judge.show_result")
    named = {"bench_name": "mt_bench", "judge_model": "", "model_list": None}
    with redirect_stdout(StringIO()) as printed:
        show_result.display_result_single(Namespace(input_file=str(file), **named))
    means = re.findall(r"^org__model .*?(\S+)$", printed.getvalue(), re.M)
    return [float(mean) for mean in means]
