"""Stock backends with a clock: their answers unchanged, and records of only what they report."""

import json
import shutil
from collections.abc import Iterator, Sequence
from http.server import ThreadingHTTPServer
from itertools import product
from pathlib import Path
from time import perf_counter, sleep
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from benchmarks.forced import ForcedModel
from byte_model import loaded
from in_process import evaluate_into, rows_in
from lm_eval.api.instance import Instance
from lm_eval.api.registry import model_registry
from lm_eval.models.huggingface import HFLM
from scripted_lm import Scripted
from threaded_server import Handler, InThread
from timed_models import CONTEXTS, instances, make, rows
from transformers import GenerationConfig

from copyspec_eval.errors import OptionError
from copyspec_eval.harness.recorder import Asked
from copyspec_eval.harness.timed import TimedLM
from copyspec_eval.manifest import read_manifests
from copyspec_eval.reports import tables
from copyspec_eval.types import Attempt, DraftCounts

LOOKUP = {"prompt_lookup_num_tokens": 10}


def make_hf(folder: Path, **configured: Any) -> Any:
    return make(f"base=hf,pretrained={folder},dtype=float64", device="cpu", **configured)


@pytest.fixture(scope="module")
def stock(byte_model: Path) -> Any:
    return HFLM.create_from_arg_string(f"pretrained={byte_model},dtype=float64", {"device": "cpu"})


def answers_of(lm: Any, settings: dict[str, Any] | None = None, **more: Any) -> list[str]:
    return list(lm.generate_until(instances(settings, **more), disable_tqdm=True))


@pytest.mark.parametrize("batch_size", [1, 3])
def test_hf_answers_as_ever_and_its_tokens_are_counted(byte_model, stock, batch_size):
    timed = make_hf(byte_model, batch_size=batch_size)
    assert isinstance(timed, HFLM)
    wanted = answers_of(stock)
    stops, reasons = [wanted[0][7:9], wanted[2][12:13]], set()
    for settings in ({"until": stops}, {"max_gen_toks": 9}, {}):
        started = perf_counter()
        answers = answers_of(timed, settings)
        seconds = perf_counter() - started
        assert answers == answers_of(stock, settings)
        recorded = rows(answers)
        for row, answer in zip(recorded, answers, strict=True):
            counts: Any = row.counts
            assert counts.num_tokens == len(row.token_ids or ())
            assert counts.num_forwards == (counts.num_tokens if batch_size == 1 else None)
            assert counts.num_prompt_tokens == len(timed.tok_encode(CONTEXTS[row.doc_id]))
            assert timed.tok_decode(row.token_ids).startswith(answer)
            assert (row.backend, row.batch_size, row.text) == ("hf", batch_size, answer)
            reasons.add(counts.finish_reason)
            assert 0 < counts.prefill_seconds < counts.seconds <= counts.latency_seconds <= seconds
            assert counts.prefill_seconds + counts.decode_seconds == pytest.approx(counts.seconds)
            assert counts.num_prefill_tokens == 1
        assert sum(row.counts.seconds or 0 for row in recorded) <= seconds
    assert reasons == {"eos", "stop", "length"}
    latencies = {row.counts.latency_seconds for row in recorded}
    assert len(latencies) == -(-len(CONTEXTS) // batch_size), "a batch has one latency"
    figures = timed.get_model_info()["copyspec"]["figures"]["task"]["turn 1"]
    assert figures["turns"] == len(CONTEXTS), "of these settings, and no warm-up"
    assert min(figures["tokens_per_second"], figures["decode_tokens_per_second"]) > 0
    assert figures["tokens_per_forward"] == (1 if batch_size == 1 else None)
    assert figures["copied_share"] is None
    assert "tokens/s" in tables.run_table(recorded)


def test_other_requests_are_left_to_the_base(byte_model, stock):
    pair = [Instance("loglikelihood", {}, ("To be", " or not"), 0, ("task", 0, 1))]
    timed = make_hf(byte_model)
    ours, theirs = (lm.loglikelihood(pair, disable_tqdm=True) for lm in (timed, stock))
    assert ours == theirs
    assert timed.chat_template(True) == stock.chat_template(True)


def test_requests_with_other_settings_are_not_in_one_batch(byte_model, stock):
    mixed = [*instances({"max_gen_toks": 5}), *instances({"max_gen_toks": 11})]
    answers = make_hf(byte_model, batch_size=4).generate_until(mixed, disable_tqdm=True)
    assert answers == stock.generate_until(mixed, disable_tqdm=True)
    assert {row.counts.num_tokens for row in rows(answers)} == {5, 6, 11}


def test_the_same_seed_samples_as_hf_and_repeats_are_samples_of_their_own(byte_model, stock):
    sampling = {"do_sample": True, "temperature": 1.0}
    timed, answers = make_hf(byte_model), []
    for lm in (timed, stock):
        torch.manual_seed(1)
        answers.append(answers_of(lm, sampling, repeats=2))
    assert answers[0] == answers[1]
    assert answers[0][0] != answers[0][1]
    recorded = rows(answers[0])
    asked = [*product(range(len(CONTEXTS)), range(2))]
    assert [(row.doc_id, row.repeat) for row in recorded] == asked
    assert [timed.tok_decode(row.token_ids) for row in recorded] == [row.text for row in recorded]


def test_prompt_lookup_of_hf_shows_its_tokens_per_forward(byte_model, stock):
    answers = answers_of(make_hf(byte_model), LOOKUP)
    assert answers == answers_of(stock)
    prefills = {row.counts.num_prefill_tokens for row in rows(answers)}
    assert prefills == {None}, "its prefill verifies a draft"
    figures = tables.run_figures(rows(answers))["task"]["turn 1"]
    assert figures["tokens_per_forward"] > 1.5
    assert figures["accepted_per_attempt"] is None


def test_prompt_lookup_of_hf_runs_past_a_stop_string(byte_model):
    """lm-eval cuts the text, so the answer is right; what comes behind the stop is in vain."""
    prompt = "xyENDabcdefghijklmnopqrstuvw Again: "
    model, tokenizer = loaded(byte_model)
    forced = ForcedModel(model, [tokenizer.encode(4 * prompt)])
    arguments = {"base": "hf", "pretrained": model, "tokenizer": str(byte_model)}
    timed: Any = TimedLM.create_from_arg_obj(arguments)
    for settings in ({}, LOOKUP):
        [row] = rows(answers_of(timed, {"until": ["END"], **settings}, contexts=[prompt]))
        counts = row.counts
        assert (row.text, counts.finish_reason) == ("xy", "stop")
        assert timed.tok_decode(row.token_ids) == "xyEND"
        assert (counts.num_tokens, counts.num_prompt_tokens) == (5, len(prompt))
        assert counts.num_forwards == 5
    assert forced.forwards[-1].position > len(prompt) + 20, "past the stop to the budget"


def test_generation_config_of_the_model_is_honoured(byte_model, stock, tmp_path):
    folder = tmp_path / "penalised"
    shutil.copytree(byte_model, folder)
    eos = [int(stock.tokenizer.eos_token_id), stock.tok_encode(answers_of(stock)[1])[0]]
    GenerationConfig(repetition_penalty=1.3, eos_token_id=eos).save_pretrained(folder)
    timed = make_hf(folder)
    for settings in (LOOKUP, {"until": ["x"]}):
        assert timed.processors(settings) == ["RepetitionPenaltyLogitsProcessor"]
    recorded = rows(answers_of(timed))
    assert {row.counts.finish_reason for row in recorded} == {"eos", "length"}
    ended = [row.token_ids or () for row in recorded if row.counts.finish_reason == "eos"]
    assert {token_ids[-1] for token_ids in ended} == {*eos}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("bas=hf,pretrained=x", r"no base among the model_args \(bas, pretrained\); pass base="),
        ("base=vlm", r"unknown base 'vlm' \(did you mean 'vllm'\?\)"),
        ("base=copyspec", r"base=copyspec keeps records of its own; .* base=hf"),
        ("base=hf,batch_size=auto", r"batch_size='auto' is not a number .* pass --batch_size 1"),
        ("base=local-completions,batch_size=auto", r"batch_size='auto' is not a number"),
        ("base=hf,num_concurrent=4", r"num_concurrent=4: .* leave .* out"),
        ("base=absent", r"base=absent cannot be imported \(No module named 'nowhere'\)"),
    ],
)
def test_refusals(monkeypatch, options, message):
    monkeypatch.setitem(model_registry._objs, "absent", "nowhere.models:Absent")
    with pytest.raises(OptionError, match=message) as refusal:
        make(options)
    assert "\n" not in str(refusal.value)


def test_a_run_is_recorded_as_it_was_asked_for_and_resolved(our_questions, tmp_path):
    given = {"base": "hf", "chat_template_args": {"enable_thinking": True, "x": 5}, "token": "hf_x"}
    evaluate_into(tmp_path, Path("copyspec-tiny"), given, "copyspec-timed", limit=1)
    [run] = read_manifests(tmp_path, []).values()
    spec, arguments = run.spec, run.spec.model_args
    assert (spec.backend, spec.model, spec.drafting) == ("hf", "copyspec-tiny", {})
    assert (spec.device, spec.dtype, spec.batch_size) == ("cpu", "float32", 1)
    assert spec.threads == torch.get_num_threads()
    assert spec.code is None or len(spec.code.partition("+")[0]) == 12
    assert (arguments["max_length"], arguments["token"]) == (2048, "not-recorded")
    assert arguments["chat_template_args"] == {"enable_thinking": True, "x": "not-recorded"}
    assert arguments["trust_remote_code"] is False, "a default"
    assert "pretrained" not in arguments
    assert [row.run_id for row in rows_in(tmp_path)] == [run.run_id] * 2


def test_the_warm_up_leaves_a_devices_random_numbers_as_they_were(monkeypatch):
    states = ["before"]
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda: torch.device("mps"))
    monkeypatch.setattr(torch.mps, "device_count", lambda: 1)
    monkeypatch.setattr(torch.mps, "get_rng_state", lambda device: states[-1])
    monkeypatch.setattr(torch.mps, "set_rng_state", lambda state, device: states.append(state))
    model: Any = SimpleNamespace(ask=lambda jobs: states.append("after"))
    [instance, *_] = instances()
    TimedLM._warm_up(model, Asked(instance, 0, *instance.args))
    assert states == ["before", "after", "before"]


class SlowLM(Scripted):
    def __init__(self, batch_size: int = 1, **kwargs: Any) -> None:
        super().__init__()
        self.batch_size = batch_size
        self.batches: list[list[str]] = []

    def generate_until(self, requests):  # type: ignore[override]  # without a bar
        self.batches.append([request.args[0] for request in requests])
        sleep(0.01)
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
    assert "tokens/s" not in tables.run_table(recorded)


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
        sleep(server.seconds)
        server.under_way.append(server.under_way[-1] - 1)
        if server.failures:
            server.failures -= 1
            return self.send_error(503)
        asked = body.get("prompt") or body["messages"][-1]["content"]
        choices = [
            {"index": index, "text": f"to {text}", "message": {"content": f"to {text}"}}
            for index, text in enumerate(asked if isinstance(asked, list) else [asked])
        ]
        usage = {"prompt_tokens": len(asked), "completion_tokens": 5, "total_tokens": 12}
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


def chats_with(timed: Any, texts: Sequence[str] = CONTEXTS) -> list[str]:
    chats = [timed.apply_chat_template([{"role": "user", "content": text}]) for text in texts]
    return list(timed.generate_until(instances(contexts=chats), disable_tqdm=True))


@pytest.mark.parametrize("usage", [True, False])
def test_a_chat_server_reports_its_counts_or_not(server, usage, capsys):
    server.usage = usage
    answers = chats_with(chatting(server, batch_size=4))
    assert answers == [f"to {text}" for text in CONTEXTS]
    recorded = rows(answers)
    assert {row.batch_size for row in recorded} == {1}, "lm-eval asks a chat server one by one"
    for row, text in zip(recorded, CONTEXTS, strict=True):
        counted = row.counts.num_tokens, row.counts.num_prompt_tokens, row.counts.num_forwards
        assert counted == ((5, len(text), None) if usage else (None, None, None))
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
    [row] = rows(chats_with(chatting(server), CONTEXTS[:1]))
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
    started = perf_counter()
    answers = chats_with(chatting(server, ",num_concurrent=3"), twice)
    seconds = perf_counter() - started
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
