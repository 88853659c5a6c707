"""`--model copyspec-vllm`: what is recorded of answers that vLLM gives with our drafts."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from in_process import evaluate_into
from pretended_vllm import LLM, NUM_ROWS, pretended
from timed_models import CONTEXTS, check_counts, instances, rows

from copyspec_eval.errors import OptionError
from copyspec_eval.harness.backends import counts_by_source, finish_reason_from
from copyspec_eval.harness.timed import TimedLM
from copyspec_eval.harness.vllm_lm import CopySpecVLLM
from copyspec_eval.manifest import read_manifests
from copyspec_eval.records import TurnRecord

TEXTS = [f"{text}, {text}; {text}." for text in CONTEXTS if text.isascii()]
WANTED = [(text + text).encode()[:40].decode("utf-8", "replace") for text in TEXTS]
STORE = "drafter=suffix,store=true"


@pytest.fixture(autouse=True)
def vllm(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.delenv("COPYSPEC_DRAFTING", raising=False)
    with pretended(monkeypatch):
        yield


def make(model: Path, options: str = "", max_length: int = 256, **configured: Any) -> Any:
    arguments = f"pretrained={model},max_length={max_length}" + (f",{options}" if options else "")
    return CopySpecVLLM.create_from_arg_string(arguments, {"batch_size": 4} | configured)


def answered(lm: Any, texts: Sequence[str] = TEXTS, **settings: Any) -> list[TurnRecord]:
    return rows(lm.generate_until(instances(settings, contexts=texts), disable_tqdm=True))


def check(recorded: list[TurnRecord]) -> None:
    """Every token is of the model's own or of a draft of ours, and every copy has its place."""
    for row in recorded:
        check_counts(row)
        assert row.counts.drafts == counts_by_source(row.attempts)


@pytest.mark.parametrize("drafter", [STORE, "gamma=2", "drafter=none"])
def test_counts_and_copies_of_every_answer(byte_model: Path, drafter: str) -> None:
    answers = make(byte_model, drafter).generate_until(instances(contexts=TEXTS))
    assert answers == WANTED
    recorded = rows(answers)
    check(recorded)
    for row in recorded:
        assert row.counts.num_tokens == len(row.token_ids or ())
        text = row.prompt + row.answer
        for span, place in zip(row.spans, row.span_characters, strict=True):
            if span.source >= 0:
                copied = row.answer[place.start : place.end]
                assert text[place.source_start :].startswith(copied)
    assert {(row.backend, row.batch_size) for row in recorded} == {("copyspec-vllm", 4)}
    accepted = sum(attempt.num_accepted for row in recorded for attempt in row.attempts)
    assert (accepted > 100) == (drafter != "drafter=none")


def test_an_answer_that_ends_at_a_stop_string_keeps_its_drafts(byte_model: Path) -> None:
    """vLLM's counts come with the end that its engine sees, and this end it does not see."""
    recorded = answered(make(byte_model), [TEXTS[0] * 2], until=[TEXTS[0][-9:-1]])
    assert {row.counts.finish_reason for row in recorded} == {"stop"}
    check(recorded)
    assert all(row.spans for row in recorded)


def test_close_to_the_longest_length_only_drafts_of_ours_are_counted(byte_model: Path) -> None:
    """vLLM asks for none then, and gives the whole batch zeros; the longest row was not seen."""
    recorded = answered(make(byte_model, max_length=max(map(len, TEXTS)) + 40))
    check(recorded)
    attempts = [attempt for row in recorded for attempt in row.attempts]
    assert sum(attempt.num_accepted for attempt in attempts) > 20
    assert all(attempt.num_accepted or attempt.num_drafted < 31 for attempt in attempts)


@pytest.mark.parametrize("settings", [{"do_sample": None}, {"do_sample": True, "temperature": 0.5}])
def test_sampling_drafts_on_a_cpu_is_refused(byte_model: Path, settings: dict[str, Any]) -> None:
    """Of a batch in which one request samples vLLM garbles the greedy answers, too."""
    sampled = instances(settings, contexts=TEXTS[:1])
    given: dict[str, Any] = {"base": "vllm", "pretrained": str(byte_model), "max_length": 256}
    ngram = {"speculative_config": {"method": "ngram", "num_speculative_tokens": 5}}
    drafting, ours = TimedLM.create_from_arg_obj(given | ngram), make(byte_model)
    for lm in (ours, drafting):
        with pytest.raises(OptionError, match=r"=(1\.0|0\.5): .* --gen_kwargs do_sample=false"):
            lm.generate_until([*instances(contexts=TEXTS[1:]), *sampled], disable_tqdm=True)
    [row] = answered(drafting, TEXTS[:1])
    assert row.counts.num_forwards
    assert row.counts.drafts is None, "vLLM drafts, and does not report it"
    ours.model.llm_engine.vllm_config.device_config.device_type = "cuda"
    for lm in (ours, TimedLM.create_from_arg_obj(given)):
        assert lm.generate_until(sampled), "vLLM's, on a GPU or without drafts"


def test_equal_requests_share_out_their_records(byte_model: Path) -> None:
    """With a store later ones copy the answer of the first, and so more of it."""
    requests = instances(repeats=8, contexts=TEXTS[:1])
    recorded = rows(make(byte_model, STORE, batch_size="auto").generate_until(requests))
    assert len({row.token_ids for row in recorded}) == 1
    assert len({row.spans for row in recorded}) > 1, "not one record for all"


def test_vllm_fills_up_its_own_batch(byte_model: Path) -> None:
    lm = make(byte_model, batch_size="auto")
    lm.ask = mock.Mock(wraps=lm.ask)
    recorded = answered(lm)
    asked = [len(call.args[0]) for call in lm.ask.call_args_list]
    assert asked == [1, len(TEXTS)], "a warm-up, and all at once"
    assert {row.batch_size for row in recorded} == {NUM_ROWS}
    times = {(row.counts.latency_seconds, row.counts.prefill_seconds) for row in recorded}
    assert times == {(3.0, None)}, "without the wait"


@pytest.mark.usefixtures("our_questions")
def test_the_manifest_has_what_vllm_has_loaded(byte_model: Path, tmp_path: Path) -> None:
    evaluate_into(tmp_path, byte_model, "gamma=3,max_length=256", "copyspec-vllm", limit=1)
    [run] = read_manifests(tmp_path, []).values()
    assert (run.spec.device, run.spec.dtype, run.spec.quantization) == ("cpu", "bfloat16", None)
    assert run.spec.drafting.items() >= {"drafter": "copyspec", "gamma": 3}.items()


def test_a_paired_run_has_both_answers(byte_model: Path) -> None:
    lm = make(byte_model, "paired=true")
    drafting, plain = LLM.made
    assert "speculative_config" not in plain.options
    assert {one.options["gpu_memory_utilization"] for one in (drafting, plain)} == {0.45}
    recorded = answered(lm)
    for row in recorded:
        baseline: Any = row.baseline
        assert (baseline.agreement, baseline.token_ids) == ("identical", row.token_ids)
        assert baseline.counts.num_forwards == row.counts.num_tokens
    assert any(row.attempts for row in recorded)
    drafting.wrong_after = 7
    answers = lm.generate_until(instances(contexts=TEXTS))
    assert answers == WANTED == [row.text for row in rows(answers)], "the baseline's"
    for row in rows(answers):
        baseline = row.baseline
        assert baseline.difference.position == 7
        assert baseline.agreement == "diverged", "nothing says that it is a near-tie"


def test_the_warm_up_is_not_copied_from(byte_model: Path) -> None:
    [row] = answered(make(byte_model, STORE, batch_size=1), ["abcdefghij"])
    assert all(source != "store" for _, _, source in row.attempts)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("tensor_paralel_size=2", "unknown model_arg 'tensor_paralel_size'"),
        ("exact=true", "unknown model_arg 'exact'"),
        ("base=hf", "base is set by copyspec-vllm itself"),
        ("paired=1", "paired must be true or false, got 1"),
        ("data_parallel_size=2", "data_parallel_size=2: lm-eval would load the model within"),
        ("store=nowhere", "store=nowhere: no such file"),
    ],
)
def test_what_is_refused_before_loading(byte_model: Path, options: str, message: str) -> None:
    with pytest.raises(OptionError, match=message):
        make(byte_model, options)
    assert not LLM.made


def test_without_vllm_it_says_what_to_install(
    byte_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("copyspec_eval.harness.vllm_lm.find_spec", lambda name: None)
    with pytest.raises(OptionError, match=r"pip install 'copyspec-eval\[vllm\]'"):
        make(byte_model)


def test_a_stop_without_a_string_is_an_eos() -> None:
    ends = [("stop", None), ("stop", 7), ("stop", "s"), ("length", None), (None, None)]
    assert [finish_reason_from(*end) for end in ends] == ["eos", "eos", "stop", "length", None]
