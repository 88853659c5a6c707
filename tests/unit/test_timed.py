"""Stock backends with a clock: their answers unchanged, and records of only what they report."""

from __future__ import annotations

import functools
import json
import shutil
import sys
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib import metadata
from importlib.machinery import ModuleSpec
from pathlib import Path
from time import perf_counter
from types import ModuleType, SimpleNamespace
from typing import Any

import lm_eval
import pytest
import torch
from lm_eval.api.instance import Instance
from lm_eval.api.model import LM
from lm_eval.api.registry import _materialise_placeholder, get_model, model_registry
from lm_eval.models.huggingface import HFLM
from lm_eval.tasks import TaskManager
from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig

from copyspec_eval import provenance
from copyspec_eval.errors import OptionError
from copyspec_eval.harness import timed
from copyspec_eval.harness.timed import TimedLM
from copyspec_eval.paths import tasks_dir
from copyspec_eval.records import TurnRecord, record_of
from copyspec_eval.reports import table

CONTEXTS = ["Once upon a time", "a b a b a b a b", "To be, or not to be, that is", "x", "é à ü"]
LOOKUP = {"prompt_lookup_num_tokens": 10}


def make(options: str, **configured: Any) -> Any:
    return TimedLM.create_from_arg_string(options, configured)


def make_hf(folder: Path, options: str = "", **configured: Any) -> Any:
    return make(f"base=hf,pretrained={folder},dtype=float64,{options}", device="cpu", **configured)


def instances(
    settings: dict[str, Any] | None = None, repeats: int = 1, contexts: Any = CONTEXTS
) -> list[Instance]:
    """One instance per context, listed `repeats` times as lm-eval lists it."""
    settings = {"until": [], "max_gen_toks": 40, **(settings or {})}
    made = [
        Instance("generate_until", {"category": "c"}, (text, settings), 0, ("task", doc, repeats))
        for doc, text in enumerate(contexts)
    ]
    return [instance for instance in made for _ in range(repeats)]


def rows(answers: list[str]) -> list[TurnRecord]:
    records = [record_of(answer) for answer in answers]
    assert None not in records
    return [record for record in records if record is not None]


@pytest.fixture(scope="module")
def stock(byte_model: Path) -> Any:
    return HFLM.create_from_arg_string(f"pretrained={byte_model},dtype=float64", {"device": "cpu"})


def answers_of(stock: Any, settings: dict[str, Any] | None = None) -> list[str]:
    return list(stock.generate_until(instances(settings), disable_tqdm=True))


@pytest.mark.parametrize("batch_size", [1, 3])
def test_hf_answers_as_ever_and_its_tokens_are_counted(
    byte_model: Path, stock: Any, batch_size: int
) -> None:
    timed = make_hf(byte_model, batch_size=batch_size)
    assert isinstance(timed, HFLM)
    wanted = answers_of(stock)
    stops = [wanted[0][7:9], wanted[2][12:13]]
    reasons = set()
    for settings in ({}, {"until": stops}, {"max_gen_toks": 9}):
        answers = timed.generate_until(instances(settings), disable_tqdm=True)
        assert answers == answers_of(stock, settings)
        for row, answer in zip(rows(answers), answers, strict=True):
            assert row.token_ids is not None
            assert row.counts.num_tokens == len(row.token_ids)
            assert row.counts.num_forwards == (row.counts.num_tokens if batch_size == 1 else None)
            assert row.counts.num_prompt_tokens == len(timed.tok_encode(CONTEXTS[row.doc_id]))
            assert timed.tok_decode(row.token_ids).startswith(answer)
            assert (row.backend, row.batch_size, row.text) == ("hf", batch_size, answer)
            reasons.add(row.counts.finish_reason)
    assert reasons == {"eos", "stop", "length"}


@pytest.mark.parametrize("batch_size", [1, 3])
def test_records_of_hf_add_up(byte_model: Path, batch_size: int) -> None:
    timed = make_hf(byte_model, batch_size=batch_size)
    started = perf_counter()
    recorded = rows(timed.generate_until(instances(), disable_tqdm=True))
    seconds = perf_counter() - started
    total = 0.0
    for row in recorded:
        counts = row.counts
        assert counts.seconds is not None
        assert counts.prefill_seconds is not None
        assert counts.decode_seconds is not None
        assert counts.latency_seconds is not None
        assert 0 < counts.prefill_seconds < counts.seconds
        assert counts.prefill_seconds + counts.decode_seconds == pytest.approx(counts.seconds)
        assert counts.seconds <= counts.latency_seconds <= seconds
        assert counts.num_prefill_tokens == 1
        total += counts.seconds
    assert total <= seconds
    by_latency = {row.counts.latency_seconds for row in recorded}
    assert len(by_latency) == -(-len(CONTEXTS) // batch_size), "a batch has one latency"
    figures = timed.get_model_info()["copyspec"]["figures"]["task"]["turn 1"]
    assert figures["turns"] == len(CONTEXTS), "the warm-up is not counted"
    assert figures["tokens_per_second"] > 0
    assert figures["decode_tokens_per_second"] > 0
    assert figures["tokens_per_forward"] == (1 if batch_size == 1 else None)
    assert figures["copied_share"] is None
    assert "tok/s" in table.run_table(recorded)


def test_other_requests_are_left_to_the_base(byte_model: Path, stock: Any) -> None:
    pair = [Instance("loglikelihood", {}, ("To be", " or not"), 0, ("task", 0, 1))]
    timed = make_hf(byte_model)
    assert timed.loglikelihood(pair, disable_tqdm=True) == stock.loglikelihood(
        pair, disable_tqdm=True
    )
    assert timed.chat_template(True) == stock.chat_template(True)


def test_requests_with_other_settings_are_not_in_one_batch(byte_model: Path, stock: Any) -> None:
    mixed = [*instances({"max_gen_toks": 5}), *instances({"max_gen_toks": 11})]
    answers = make_hf(byte_model, batch_size=4).generate_until(mixed, disable_tqdm=True)
    assert answers == stock.generate_until(mixed, disable_tqdm=True)
    assert {row.counts.num_tokens for row in rows(answers)} == {5, 6, 11}


SAMPLING = {"do_sample": True, "temperature": 1.0}


def test_the_same_seed_samples_as_hf(byte_model: Path, stock: Any) -> None:
    timed = make_hf(byte_model)
    torch.manual_seed(1)
    wanted = answers_of(stock, SAMPLING)
    torch.manual_seed(1)
    assert timed.generate_until(instances(SAMPLING), disable_tqdm=True) == wanted
    assert wanted != answers_of(stock)


def test_repeats_are_samples_of_their_own(byte_model: Path) -> None:
    timed = make_hf(byte_model, batch_size=3)
    answers = timed.generate_until(instances(SAMPLING, repeats=2), disable_tqdm=True)
    recorded = rows(answers)
    assert [(row.doc_id, row.repeat) for row in recorded] == [
        (doc, repeat) for doc in range(len(CONTEXTS)) for repeat in range(2)
    ]
    assert answers[0] != answers[1]
    assert len(timed._recorder.rows) == 2 * len(CONTEXTS)
    for row in recorded:
        assert timed.tok_decode(row.token_ids) == row.text


def test_a_request_repeated_as_padding_is_answered_once(byte_model: Path) -> None:
    timed = make_hf(byte_model)
    requests = instances()
    answers = timed.generate_until([*requests, requests[-1]], disable_tqdm=True)
    assert answers[-1] is answers[-2]
    assert len(timed._recorder.rows) == len(requests)


def test_prompt_lookup_of_hf_shows_its_tokens_per_forward(byte_model: Path, stock: Any) -> None:
    answers = make_hf(byte_model).generate_until(instances(LOOKUP), disable_tqdm=True)
    counts = [record.counts for record in map(record_of, answers) if record]
    assert {each.num_prefill_tokens for each in counts} == {None}, "its prefill verifies a draft"
    assert answers == answers_of(stock)
    figures = table.run_figures(rows(answers))["task"]["turn 1"]
    assert figures["tokens_per_forward"] > 1.5
    assert figures["accepted_per_attempt"] is None


def model_continuing(text: str, folder: Path) -> tuple[Any, list[int]]:
    """A model that continues as `text` does, and how many tokens each of its `generate` gave."""
    model: Any = AutoModelForCausalLM.from_pretrained(folder)
    script = torch.tensor(AutoTokenizer.from_pretrained(folder).encode(text))
    forward, generate = model.forward, model.generate
    lengths: list[int] = []

    @functools.wraps(forward)
    def scripted(*args: Any, **kwargs: Any) -> Any:
        output = forward(*args, **kwargs)
        end = output.past_key_values.get_seq_length() + 1
        following = script[end - output.logits.shape[1] : end]
        output.logits.zero_().scatter_(2, following[None, :, None], 1.0)
        return output

    def counted(input_ids: torch.Tensor, **kwargs: Any) -> Any:
        output = generate(input_ids=input_ids, **kwargs)
        lengths.append(output.shape[1] - input_ids.shape[1])
        return output

    model.forward, model.generate = scripted, counted
    return model, lengths


def test_prompt_lookup_of_hf_runs_past_a_stop_string(byte_model: Path) -> None:
    """lm-eval cuts the text, so the answer is right; what comes behind the stop is in vain."""
    prompt = "xyENDabcdefghijklmnopqrstuvw Again: "
    model, lengths = model_continuing(prompt + 3 * prompt, byte_model)
    timed: Any = TimedLM.create_from_arg_obj(
        {"base": "hf", "pretrained": model, "tokenizer": str(byte_model)}
    )
    forwards = {}
    for name, settings in (("greedy", {}), ("lookup", LOOKUP)):
        request = instances({"until": ["END"], **settings}, contexts=[prompt])
        [row] = rows(timed.generate_until(request, disable_tqdm=True))
        counts = row.counts
        assert (row.text, counts.finish_reason) == ("xy", "stop")
        assert timed.tok_decode(row.token_ids) == "xyEND"
        assert (counts.num_tokens, counts.num_prompt_tokens) == (5, len(prompt))
        forwards[name] = counts.num_forwards
    assert lengths == [4, 5, 40], "the warm-up, up to the stop, and past it to the budget"
    assert forwards == {"greedy": 5, "lookup": 5}


def test_generation_config_of_the_model_is_honoured(
    byte_model: Path, stock: Any, tmp_path: Path
) -> None:
    folder = tmp_path / "penalised"
    shutil.copytree(byte_model, folder)
    eos = [int(stock.tokenizer.eos_token_id), stock.tok_encode(answers_of(stock)[1])[0]]
    GenerationConfig(repetition_penalty=1.3, eos_token_id=eos).save_pretrained(folder)
    timed = make_hf(folder)
    for settings in (LOOKUP, {"until": ["x"]}):
        assert timed.processors(settings) == ("RepetitionPenaltyLogitsProcessor",)
    recorded = rows(timed.generate_until(instances(), disable_tqdm=True))
    assert {row.counts.finish_reason for row in recorded} == {"eos", "length"}
    assert {
        row.token_ids[-1] for row in recorded if row.counts.finish_reason == "eos" and row.token_ids
    } == set(eos)


def test_answers_from_the_cache_keep_their_counts_and_have_no_time(
    byte_model: Path, questions: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COPYSPEC_DATA_DIR", str(questions))
    monkeypatch.setattr("lm_eval.evaluator.add_env_info", lambda results: None)
    timed = make_hf(byte_model)

    def evaluate() -> dict[str, float]:
        results: Any = lm_eval.simple_evaluate(
            timed,
            tasks=["mt_bench"],
            task_manager=TaskManager(include_path=[tasks_dir()], include_defaults=False),
            gen_kwargs={"max_gen_toks": 8},
            use_cache=str(tmp_path / "cache"),
        )
        return dict(results["results"]["mt_bench"])

    assert "tokens_per_second_turn2,none" in evaluate()
    assert len(timed._recorder.rows) == 12
    provenance.process_id.cache_clear()  # as another process would have it
    figures = evaluate()
    assert len(timed._recorder.rows) == 12, "nothing was asked again"
    assert figures["tokens_per_forward_turn2,none"] == 1
    assert "tokens_per_second_turn2,none" not in figures
    assert "latency_seconds_turn1,none" not in figures


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("bas=hf,pretrained=x", r"no base among the model_args \(bas, pretrained\); pass base="),
        ("base=vlm", r"unknown base 'vlm' \(did you mean 'vllm'\?\); known: .*, hf, "),
        ("base=copyspec", r"base=copyspec keeps records of its own; .* base=hf"),
        ("base=copyspec-timed", r"base=copyspec-timed keeps records of its own"),
        ("base=hf,batch_size=auto", r"batch_size='auto' is not a number .* pass --batch_size 1"),
        ("base=hf,batch_size=0", r"batch_size=0 is not a number"),
        ("base=local-completions,num_concurrent=4", r"num_concurrent=4: .* leave .* out"),
        ("base=absent", r"base=absent cannot be imported \(No module named 'nowhere'\)"),
    ],
)
def test_refusals(monkeypatch: pytest.MonkeyPatch, options: str, message: str) -> None:
    monkeypatch.setitem(model_registry._objs, "absent", "nowhere.models:Absent")
    with pytest.raises(OptionError, match=message) as refusal:
        make(options)
    assert "\n" not in str(refusal.value)


def test_the_registry_knows_the_name() -> None:
    assert get_model("copyspec-timed") is TimedLM


class SlowLM(LM):  # type: ignore[misc]  # lm-eval's classes carry no types
    """A backend that reports nothing but its answers."""

    def __init__(self, batch_size: int = 1, **kwargs: Any) -> None:
        super().__init__()
        self.batch_size = batch_size
        self.asked: list[list[str]] = []

    def generate_until(self, requests):
        self.asked.append([request.args[0] for request in requests])
        time.sleep(0.01)
        return [f"to {request.args[0]}" for request in requests]

    def loglikelihood(self, requests):
        raise NotImplementedError

    loglikelihood_rolling = loglikelihood


def test_any_other_backend_has_seconds_and_no_rates(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(model_registry._objs, "slow", SlowLM)
    timed: Any = make("base=slow,model=m", batch_size=2)
    answers = timed.generate_until(instances())
    assert answers == [f"to {text}" for text in CONTEXTS]
    longest_first = sorted(CONTEXTS, key=lambda text: (-len(text), text))
    assert (
        timed.asked
        == [
            longest_first[:1],  # the warm-up
            longest_first[:2],
            longest_first[2:4],
            longest_first[4:],
        ]
    )
    recorded = rows(answers)
    assert {row.backend for row in recorded} == {"slow"}
    assert (
        {row.counts.num_tokens for row in recorded}
        == {row.counts.num_forwards for row in recorded}
        == {None}
    )
    full = [row for row in recorded if row.doc_id != CONTEXTS.index(longest_first[4])]
    for row in full:
        assert row.counts.seconds == (row.counts.latency_seconds or 0) / 2 >= 0.005
    figures = table.run_figures(recorded)["task"]["turn 1"]
    assert figures["tokens_per_second"] is None
    assert figures["latency_seconds"] >= 0.01
    assert "tok/s" not in table.run_table(recorded)


class Server(ThreadingHTTPServer):
    """Answers chat and text completions, with `usage` unless that is switched off."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.usage = True
        self.bodies: list[dict[str, Any]] = []

    def url(self, path: str) -> str:
        return f"http://127.0.0.1:{self.server_port}/v1/{path}"


class Handler(BaseHTTPRequestHandler):
    server: Server

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.bodies.append(body)
        if "messages" in body:
            question = body["messages"][-1]["content"]
            choices = [{"index": 0, "message": {"role": "assistant", "content": f"to {question}"}}]
        else:
            prompts = body["prompt"] if isinstance(body["prompt"], list) else [body["prompt"]]
            choices = [{"index": i, "text": f"to {text}"} for i, text in enumerate(prompts)]
        reply: dict[str, Any] = {"choices": choices}
        if self.server.usage:
            reply["usage"] = {"prompt_tokens": 7, "completion_tokens": 5, "total_tokens": 12}
        content = json.dumps(reply).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    with Server() as running:
        thread = threading.Thread(target=running.serve_forever, args=(0.01,))
        thread.start()
        yield running
        running.shutdown()
        thread.join()


@pytest.mark.parametrize("usage", [True, False])
def test_a_chat_server_reports_its_counts_or_not(
    server: Server, usage: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    server.usage = usage
    timed: Any = make(
        f"base=local-chat-completions,model=m,base_url={server.url('chat/completions')}",
        batch_size=4,
    )
    chats = [timed.apply_chat_template([{"role": "user", "content": text}]) for text in CONTEXTS]
    answers = timed.generate_until(instances(contexts=chats), disable_tqdm=True)
    assert answers == [f"to {text}" for text in CONTEXTS]
    recorded = rows(answers)
    assert {row.batch_size for row in recorded} == {1}, "lm-eval asks a chat server one by one"
    assert {row.counts.num_tokens for row in recorded} == {5 if usage else None}
    assert {row.counts.num_prompt_tokens for row in recorded} == {7 if usage else None}
    assert {row.counts.num_forwards for row in recorded} == {None}
    assert len({row.prompt_sha256 for row in recorded}) == len(CONTEXTS)
    assert [body["max_tokens"] for body in server.bodies] == [4] + [40] * len(CONTEXTS)
    figures = table.run_figures(recorded)["task"]["turn 1"]
    assert (figures["tokens_per_second"] is not None) == usage
    assert figures["decode_tokens_per_second"] is None
    assert capsys.readouterr().err == "", "no bar for every request"


@pytest.mark.parametrize(("batch_size", "tokens"), [(1, 5), (3, None)])
def test_a_server_counts_a_batch_as_one(
    server: Server, batch_size: int, tokens: int | None
) -> None:
    url = server.url("completions")
    timed: Any = make(
        f"base=local-completions,model=m,base_url={url},tokenizer_backend=none",
        batch_size=batch_size,
    )
    answers = timed.generate_until(instances()[:3], disable_tqdm=True)
    assert answers == [f"to {text}" for text in CONTEXTS[:3]]
    assert [row.counts.num_tokens for row in rows(answers)] == [tokens] * 3
    assert len(server.bodies) == 1 + 3 // batch_size


class Engine:
    """What lm-eval uses of vLLM's engine; answers `yes` and ends in three ways."""

    def __init__(self, **options: Any) -> None:
        self.tokenizer: Any = AutoTokenizer.from_pretrained(options["model"])

    def generate(self, prompts: Any, sampling_params: Any, **options: Any) -> list[Any]:
        ends = (("stop", None), ("stop", "s"), ("length", None))
        yes = {"text": "yes", "token_ids": self.tokenizer.encode("yes")}
        answers = [
            SimpleNamespace(**yes, finish_reason=finish, stop_reason=stop) for finish, stop in ends
        ]
        return [
            SimpleNamespace(prompt_token_ids=prompt, outputs=[answer])
            for prompt, answer in zip(prompts, answers, strict=False)
        ]


@pytest.fixture
def vllm(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """lm-eval's own `vllm` model, in front of `Engine` in place of vLLM."""
    record = dict
    contents: dict[str, dict[str, Any]] = {
        "vllm": {"LLM": Engine, "SamplingParams": record, "TokensPrompt": _prompt_ids},
        "vllm.lora": {},
        "vllm.lora.request": {"LoRARequest": None},
        "vllm.tokenizers": {"get_tokenizer": _tokenizer},
    }
    for name, members in contents.items():
        module = ModuleType(name)
        module.__spec__ = ModuleSpec(name, None)
        vars(module).update(members)
        monkeypatch.setitem(sys.modules, name, module)
    version = metadata.version
    monkeypatch.setattr(
        metadata, "version", lambda name: "0.8.0" if name == "vllm" else version(name)
    )
    placeholder = "lm_eval.models.vllm_causallms:VLLM"
    monkeypatch.setitem(model_registry._objs, "vllm", placeholder)
    yield
    sys.modules.pop(placeholder.partition(":")[0], None)
    _materialise_placeholder.cache_clear()


def _prompt_ids(prompt_token_ids: list[int]) -> list[int]:
    return prompt_token_ids


def _tokenizer(name: str, **options: Any) -> Any:
    return AutoTokenizer.from_pretrained(name)


@pytest.mark.usefixtures("vllm")
def test_vllm_reports_its_tokens(byte_model: Path) -> None:
    timed: Any = make(f"base=vllm,pretrained={byte_model},max_length=2048", batch_size=3)
    answers = timed.generate_until(instances({"until": ["s"]})[:3], disable_tqdm=True)
    assert answers == ["ye"] * 3
    recorded = rows(answers)
    assert [row.counts.num_prompt_tokens for row in recorded] == [
        len(text) for text in CONTEXTS[:3]
    ]
    assert {row.token_ids for row in recorded} == {tuple(timed.tok_encode("yes"))}
    longest_first = sorted(recorded, key=lambda row: -(row.counts.num_prompt_tokens or 0))
    assert [row.counts.finish_reason for row in longest_first] == ["eos", "stop", "length"]
    assert {row.counts.num_forwards for row in recorded} == {None}


def test_the_spec_names_the_model_as_it_was_given() -> None:
    timed: Any = TimedLM.create_from_arg_obj(
        {"base": "hf", "pretrained": "copyspec-tiny", "device": "cpu"}
    )
    spec = timed._spec([])
    assert (spec.backend, spec.model, spec.drafting) == ("hf", "copyspec-tiny", {})
    assert spec.model_args["max_length"] == 2048
    assert "pretrained" not in spec.model_args


def test_the_warm_up_leaves_a_devices_random_numbers_as_they_were(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    states = ["before"]
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda: torch.device("mps"))
    monkeypatch.setattr(torch.mps, "device_count", lambda: 1)
    monkeypatch.setattr(torch.mps, "get_rng_state", lambda device: states[-1])
    monkeypatch.setattr(torch.mps, "set_rng_state", lambda state, device: states.append(state))
    monkeypatch.setattr(timed, "_beginning", lambda job: job)
    model: Any = SimpleNamespace(ask=lambda jobs: states.append("after"))
    job: Any = "a job"
    TimedLM._warm_up(model, job)
    assert states == ["before", "after", "before"]
