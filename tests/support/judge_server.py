"""An OpenAI-compatible server in a thread that judges, fails and delays on demand."""

import json
import threading
import time
from collections import Counter
from collections.abc import Callable
from http.server import ThreadingHTTPServer
from pathlib import Path
from typing import Any, NamedTuple

from threaded_server import Handler, InThread


class Reply(NamedTuple):
    """An answer; `text` is the judgement, or the body if the status is not 200."""

    text: str
    status: int = 200
    seconds: float = 0.0


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
        reply = server.answer(body, times)
        time.sleep(reply.seconds)
        message = {"role": "assistant", "content": reply.text}
        choices = [{"index": 0, "message": message, "finish_reason": "stop"}]
        completion = {"id": "j", "object": "chat.completion", "created": 0, "model": "judge"}
        text = json.dumps({**completion, "choices": choices})
        self.send((text if reply.status == 200 else reply.text).encode(), reply.status)


def write_judge_data(folder: Path) -> Path:
    """Made-up prompts and a reference answer, laid out as in `COPYSPEC_DATA_DIR`."""
    single, both = "{question}|{answer}", "{question_1}|{answer_1}|{question_2}|{answer_2}"
    pair = "{question}|{answer_a} or {answer_b}"
    pairs = "{question_1}|{question_2}|{answer_a_1}, {answer_a_2} or {answer_b_1}, {answer_b_2}"
    rating = {"type": "single", "output_format": "[[rating]]"}
    choice = {"type": "pairwise", "output_format": "[[A]]"}
    first, all_references = "|ref {ref_answer_1}", "|ref {ref_answer_1}, {ref_answer_2}"
    kinds = {
        "single-v1": (single, rating),
        "single-math-v1": (single + first, rating),
        "single-v1-multi-turn": (both, rating),
        "single-math-v1-multi-turn": (both + all_references, rating),
        "pair-v2": (pair, choice),
        "pair-math-v1": (pair + first, choice),
        "pair-v2-multi-turn": (pairs, choice),
        "pair-math-v1-multi-turn": (pairs + all_references, choice),
    }
    prompts = [
        {"name": name, "system_prompt": f"Be {name}.", "prompt_template": user} | kind
        for name, (user, kind) in kinds.items()
    ]
    references = [{"question_id": 2, "choices": [{"index": 0, "turns": ["R1", "R2"]}]}]
    (folder / "mt_bench").mkdir(parents=True)
    for name, rows in (("judge_prompts", prompts), ("reference_answer_gpt-4", references)):
        text = "".join(json.dumps(row) + "\n" for row in rows)
        (folder / "mt_bench" / f"{name}.jsonl").write_text(text)
    return folder
