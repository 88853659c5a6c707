"""Other backends with a clock: what they report, and nothing else."""

import json
import time
from collections.abc import Iterator, Sequence
from http.server import ThreadingHTTPServer
from typing import Any

import pytest
from lm_eval.api.registry import model_registry
from scripted_lm import Scripted
from threaded_server import Handler, InThread
from timed_models import CONTEXTS, instances, make, rows

from copyspec_eval.reports import tables
from copyspec_eval.types import Attempt, DraftCounts


class SlowLM(Scripted):
    """A backend that reports nothing but its answers."""

    def __init__(self, batch_size: int = 1, **kwargs: Any) -> None:
        super().__init__()
        self.batch_size = batch_size
        self.batches: list[list[str]] = []

    def generate_until(self, requests):
        self.batches.append([request.args[0] for request in requests])
        time.sleep(0.01)
        return [f"to {text}" for text in self.batches[-1]]


def test_any_other_backend_has_seconds_and_no_rates(monkeypatch):
    monkeypatch.setitem(model_registry._objs, "slow", SlowLM)
    timed: Any = make("base=slow,model=m", batch_size=2)
    answers = timed.generate_until(instances())
    assert answers == [f"to {text}" for text in CONTEXTS]
    longest = sorted(CONTEXTS, key=lambda text: (-len(text), text))
    assert timed.batches == [longest[:1], longest[:2], longest[2:4], longest[4:]], "a warm-up first"
    recorded = rows(answers)
    assert {row.backend for row in recorded} == {"slow"}
    assert {(row.counts.num_tokens, row.counts.num_forwards) for row in recorded} == {(None, None)}
    full = [row.counts for row in recorded if row.doc_id != CONTEXTS.index(longest[4])]
    assert all(each.seconds == (each.latency_seconds or 0) / 2 >= 0.005 for each in full)
    figures = tables.run_figures(recorded)["task"]["turn 1"]
    assert figures["tokens_per_second"] is None
    assert figures["latency_seconds"] >= 0.01
    assert "tok/s" not in tables.run_table(recorded)


class Server(InThread, ThreadingHTTPServer):
    """Answers chat and text completions, with `usage` unless that is switched off."""

    usage, failures, seconds = True, 0, 0.0

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.more: dict[str, Any] = {}
        self.bodies: list[dict[str, Any]] = []
        self.under_way = [0]


class _Handler(Handler):
    server: Server

    def do_POST(self) -> None:
        body, server = self.body(), self.server
        server.bodies.append(body)
        server.under_way.append(server.under_way[-1] + 1)
        time.sleep(server.seconds)
        server.under_way.append(server.under_way[-1] - 1)
        if server.failures:
            server.failures -= 1
            return self.send_error(503)
        size = 7
        if "messages" in body:
            question = body["messages"][-1]["content"]
            choices = [{"index": 0, "message": {"role": "assistant", "content": f"to {question}"}}]
            size = len(question) if server.seconds else size
        else:
            prompts = body["prompt"]  # several together, or one
            prompts = prompts if isinstance(prompts, list) else [prompts]
            choices = [{"index": i, "text": f"to {text}"} for i, text in enumerate(prompts)]
        usage = {"prompt_tokens": size, "completion_tokens": 5, "total_tokens": 12}
        reply = {"choices": choices} | server.more | ({"usage": usage} if server.usage else {})
        self.send(json.dumps(reply).encode())


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    with Server() as running:
        yield running


def chatting(server: Server, options: str = "", **configured: Any) -> Any:
    url = f"{server.url}/chat/completions{options}"
    return make(f"base=local-chat-completions,model=m,base_url={url}", **configured)


def answers_of(timed: Any, texts: Sequence[str] = CONTEXTS) -> list[str]:
    """Those to conversations in which so much was asked."""
    chats = [timed.apply_chat_template([{"role": "user", "content": text}]) for text in texts]
    return list(timed.generate_until(instances(contexts=chats), disable_tqdm=True))


@pytest.mark.parametrize("usage", [True, False])
def test_a_chat_server_reports_its_counts_or_not(server, usage, capsys):
    server.usage = usage
    answers = answers_of(chatting(server, batch_size=4))
    assert answers == [f"to {text}" for text in CONTEXTS]
    recorded = rows(answers)
    assert {row.batch_size for row in recorded} == {1}, "lm-eval asks a chat server one by one"
    counted = {(row.counts.num_tokens, row.counts.num_prompt_tokens) for row in recorded}
    assert counted == {(5, 7) if usage else (None, None)}
    assert {row.counts.num_forwards for row in recorded} == {None}
    assert len({row.prompt_sha256 for row in recorded}) == len(CONTEXTS)
    assert [body["max_tokens"] for body in server.bodies] == [4] + [40] * len(CONTEXTS)
    figures = tables.run_figures(recorded)["task"]["turn 1"]
    assert (figures["tokens_per_second"] is not None) == usage
    assert figures["decode_tokens_per_second"] is None
    assert capsys.readouterr().err == "", "no bar for every request"


def test_a_server_says_what_it_drafted(server):
    choice = {"index": 0, "message": {"role": "assistant", "content": "yes"}}
    choice |= {"token_ids": [3, 4, 5, 6, 2], "finish_reason": "stop", "stop_reason": None}
    drafts = {"per_step_drafted": [4, 5], "per_step_accepted": [1, 5]}
    metrics = {"time_to_first_token_ms": 0.5, "speculative_decoding": drafts}
    server.more = {"choices": [choice], "metrics": metrics}
    [row] = rows(answers_of(chatting(server), CONTEXTS[:1]))
    assert row.token_ids == (3, 4, 5, 6, 2)
    assert row.counts.finish_reason == "eos"
    assert row.counts.prefill_seconds == 0.0005
    # Two forwards with a draft and the prefill give five tokens only if the last draft was cut.
    assert row.attempts == (Attempt(4, 1, "unknown"), Attempt(5, 2, "unknown"))
    assert row.counts.drafts == {"unknown": DraftCounts(2, 9, 3)}
    assert row.counts.num_forwards is None, "there may have been some without a draft"
    figures = tables.run_figures([row])["task"]["turn 1"]
    assert figures["drafted_per_token"] == 9 / 5
    assert figures["copied_share"] is figures["accepted_per_attempt"] is None


def test_requests_under_way_together_have_times_and_counts_of_their_own(server, capsys):
    server.seconds, server.failures = 0.05, 1
    twice = [*CONTEXTS, CONTEXTS[0]]
    started = time.perf_counter()
    answers = answers_of(chatting(server, ",num_concurrent=3"), twice)
    seconds = time.perf_counter() - started
    assert answers == [f"to {text}" for text in twice]
    recorded = rows(answers)
    assert {(row.batch_size, row.counts.prefill_seconds) for row in recorded} == {(3, None)}
    assert 1 < max(server.under_way) <= 3
    assert len(server.bodies) == 1 + 1 + len(twice), "a warm-up, and one that failed"
    assert [row.counts.num_prompt_tokens for row in recorded] == [len(text) for text in twice]
    latencies = [row.counts.latency_seconds or 0.0 for row in recorded]
    assert 0.05 <= min(latencies) <= max(latencies) < seconds
    [share] = {row.counts.seconds for row in recorded}
    assert max(latencies) < len(twice) * (share or 0.0) < seconds, "in which all were answered"
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(("batch_size", "tokens"), [(1, 5), (3, None)])
def test_a_server_counts_a_batch_as_one(server, batch_size, tokens):
    options = f"base_url={server.url}/completions,tokenizer_backend=none"
    timed: Any = make(f"base=local-completions,model=m,{options}", batch_size=batch_size)
    answers = timed.generate_until(instances()[:3], disable_tqdm=True)
    assert answers == [f"to {text}" for text in CONTEXTS[:3]]
    assert [row.counts.num_tokens for row in rows(answers)] == [tokens] * 3
    assert len(server.bodies) == 1 + 3 // batch_size
