"""Stock backends with a clock: their answers unchanged, and records of only what they report."""

import functools
import shutil
from itertools import product
from pathlib import Path
from time import perf_counter
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from byte_model import loaded
from lm_eval.api.instance import Instance
from lm_eval.api.registry import model_registry
from lm_eval.models.huggingface import HFLM
from timed_models import CONTEXTS, instances, make, rows
from transformers import GenerationConfig

from copyspec_eval.errors import OptionError
from copyspec_eval.harness.recorder import Asked
from copyspec_eval.harness.timed import TimedLM
from copyspec_eval.reports import tables

LOOKUP = {"prompt_lookup_num_tokens": 10}


def make_hf(folder: Path, options: str = "", **configured: Any) -> Any:
    return make(f"base=hf,pretrained={folder},dtype=float64,{options}", device="cpu", **configured)


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
    stops = [wanted[0][7:9], wanted[2][12:13]]
    reasons = set()
    for settings in ({}, {"until": stops}, {"max_gen_toks": 9}):
        answers = answers_of(timed, settings)
        assert answers == answers_of(stock, settings)
        for row, answer in zip(rows(answers), answers, strict=True):
            assert row.counts.num_tokens == len(row.token_ids or ())
            assert row.counts.num_forwards == (row.counts.num_tokens if batch_size == 1 else None)
            assert row.counts.num_prompt_tokens == len(timed.tok_encode(CONTEXTS[row.doc_id]))
            assert timed.tok_decode(row.token_ids).startswith(answer)
            assert (row.backend, row.batch_size, row.text) == ("hf", batch_size, answer)
            reasons.add(row.counts.finish_reason)
    assert reasons == {"eos", "stop", "length"}


@pytest.mark.parametrize("batch_size", [1, 3])
def test_records_of_hf_add_up(byte_model, batch_size):
    timed = make_hf(byte_model, batch_size=batch_size)
    started = perf_counter()
    recorded = rows(answers_of(timed))
    seconds = perf_counter() - started
    every: list[Any] = [row.counts for row in recorded]
    for counts in every:
        assert 0 < counts.prefill_seconds < counts.seconds <= counts.latency_seconds <= seconds
        assert counts.prefill_seconds + counts.decode_seconds == pytest.approx(counts.seconds)
        assert counts.num_prefill_tokens == 1
    assert sum(counts.seconds for counts in every) <= seconds
    latencies = {counts.latency_seconds for counts in every}
    assert len(latencies) == -(-len(CONTEXTS) // batch_size), "a batch has one latency"
    figures = timed.get_model_info()["copyspec"]["figures"]["task"]["turn 1"]
    assert figures["turns"] == len(CONTEXTS), "the warm-up is not counted"
    assert figures["tokens_per_second"] > 0
    assert figures["decode_tokens_per_second"] > 0
    assert figures["tokens_per_forward"] == (1 if batch_size == 1 else None)
    assert figures["copied_share"] is None
    assert "tok/s" in tables.run_table(recorded)


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


SAMPLING = {"do_sample": True, "temperature": 1.0}


def test_the_same_seed_samples_as_hf(byte_model, stock):
    timed, answers = make_hf(byte_model), []
    for lm in (timed, stock):
        torch.manual_seed(1)
        answers.append(answers_of(lm, SAMPLING))
    assert answers[0] == answers[1] != answers_of(stock)


def test_repeats_are_samples_of_their_own(byte_model):
    timed = make_hf(byte_model, batch_size=3)
    answers = answers_of(timed, SAMPLING, repeats=2)
    recorded = rows(answers)
    docs = range(len(CONTEXTS))
    assert [(row.doc_id, row.repeat) for row in recorded] == [*product(docs, range(2))]
    assert answers[0] != answers[1]
    assert len(timed._recorder.rows) == 2 * len(CONTEXTS)
    assert [timed.tok_decode(row.token_ids) for row in recorded] == [row.text for row in recorded]


def test_prompt_lookup_of_hf_shows_its_tokens_per_forward(byte_model, stock):
    answers = answers_of(make_hf(byte_model), LOOKUP)
    recorded = rows(answers)
    prefills = {row.counts.num_prefill_tokens for row in recorded}
    assert prefills == {None}, "its prefill verifies a draft"
    assert answers == answers_of(stock)
    figures = tables.run_figures(recorded)["task"]["turn 1"]
    assert figures["tokens_per_forward"] > 1.5
    assert figures["accepted_per_attempt"] is None


def model_continuing(text: str, folder: Path) -> tuple[Any, list[int]]:
    """A model that continues as `text` does, and how many tokens each of its `generate` gave."""
    model, words = loaded(folder)
    script, lengths = torch.tensor(words.encode(text)), []
    forward, generate = model.forward, model.generate

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


def test_prompt_lookup_of_hf_runs_past_a_stop_string(byte_model):
    """lm-eval cuts the text, so the answer is right; what comes behind the stop is in vain."""
    prompt = "xyENDabcdefghijklmnopqrstuvw Again: "
    model, lengths = model_continuing(prompt + 3 * prompt, byte_model)
    timed: Any = TimedLM.create_from_arg_obj(
        {"base": "hf", "pretrained": model, "tokenizer": str(byte_model)}
    )
    for settings in ({}, LOOKUP):
        [row] = rows(answers_of(timed, {"until": ["END"], **settings}, contexts=[prompt]))
        counts = row.counts
        assert (row.text, counts.finish_reason) == ("xy", "stop")
        assert timed.tok_decode(row.token_ids) == "xyEND"
        assert (counts.num_tokens, counts.num_prompt_tokens) == (5, len(prompt))
        assert counts.num_forwards == 5
    assert lengths == [4, 5, 40], "the warm-up, up to the stop, and past it to the budget"


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
        ("base=copyspec-timed", r"base=copyspec-timed keeps records of its own"),
        ("base=hf,batch_size=auto", r"batch_size='auto' is not a number .* pass --batch_size 1"),
        ("base=hf,batch_size=0", r"batch_size=0 is not a number"),
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


def test_the_spec_names_the_model_as_it_was_given():
    timed: Any = make("base=hf,pretrained=copyspec-tiny", device="cpu")
    spec = timed._spec([])
    assert (spec.backend, spec.model, spec.drafting) == ("hf", "copyspec-tiny", {})
    assert spec.model_args["max_length"] == 2048
    assert "pretrained" not in spec.model_args


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
