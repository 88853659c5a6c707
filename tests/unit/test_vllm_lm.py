"""`--model copyspec-vllm`: what is recorded of answers that vLLM gives with our drafts."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from lm_eval.api.instance import Instance
from pretended_vllm import LLM, NUM_ROWS, pretended
from timed_models import CONTEXTS, instances, rows

from copyspec_eval.errors import OptionError
from copyspec_eval.harness.backends.base import counts_by_source
from copyspec_eval.harness.backends.vllm_steps import attempts
from copyspec_eval.harness.vllm_lm import CopySpecVLLM
from copyspec_eval.types import Attempt, DraftCounts

TEXTS = [f"{text}, {text}; {text}." for text in CONTEXTS if text.isascii()]


@pytest.fixture(autouse=True)
def vllm(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.delenv("COPYSPEC_DRAFTING", raising=False)
    with pretended(monkeypatch):
        yield


def make(model: Path, options: str = "", **configured: Any) -> Any:
    arguments = f"pretrained={model},max_length=256" + (f",{options}" if options else "")
    return CopySpecVLLM.create_from_arg_string(arguments, {"batch_size": 4} | configured)


@pytest.mark.parametrize("drafter", ["drafter=suffix,store=true", "gamma=2", "drafter=none"])
def test_counts_and_copies_of_every_answer(byte_model: Path, drafter: str) -> None:
    lm = make(byte_model, drafter)
    answers = lm.generate_until(instances(contexts=TEXTS), disable_tqdm=True)
    assert answers == [(text + text).encode()[:40].decode("utf-8", "replace") for text in TEXTS]
    copied = 0
    for row in rows(answers):
        counts = row.counts
        accepted = sum(attempt.num_accepted for attempt in row.attempts)
        assert counts.num_forwards is not None
        assert counts.num_tokens == len(row.token_ids or ()) == counts.num_forwards + accepted
        assert counts.drafts == counts_by_source(row.attempts)
        assert sum(span.length for span in row.spans) == accepted
        text = row.prompt + row.answer
        for span, place in zip(row.spans, row.span_characters, strict=True):
            if span.source >= 0:
                assert (
                    row.answer[place.start : place.end]
                    == text[place.source_start :][: place.end - place.start]
                )
        copied += accepted
    assert {(row.backend, row.batch_size) for row in rows(answers)} == {("copyspec-vllm", 4)}
    assert (copied > 100) == (drafter != "drafter=none")


def test_equal_requests_share_out_their_records(byte_model: Path) -> None:
    """With a store later ones copy the answer of the first, and so more of it."""
    lm = make(byte_model, "drafter=suffix,store=true", batch_size="auto")
    answers = lm.generate_until(instances(repeats=8, contexts=TEXTS[:1]), disable_tqdm=True)
    recorded = rows(answers)
    assert len({row.token_ids for row in recorded}) == 1
    assert len({row.spans for row in recorded}) > 1, "not one record for all"


def test_vllm_fills_up_its_own_batch(byte_model: Path) -> None:
    lm = make(byte_model, batch_size="auto")
    asked: list[int] = []
    ask = lm.ask

    def counted(group: list[Instance]) -> Any:
        asked.append(len(group))
        return ask(group)

    lm.ask = counted
    recorded = rows(lm.generate_until(instances(contexts=TEXTS), disable_tqdm=True))
    assert asked == [1, len(TEXTS)], "a warm-up, and all at once"
    assert {row.batch_size for row in recorded} == {NUM_ROWS}
    assert {row.counts.latency_seconds for row in recorded} == {3.0}, "without the wait"
    assert {row.counts.prefill_seconds for row in recorded} == {None}


def test_the_manifest_has_what_vllm_has_loaded(byte_model: Path) -> None:
    spec = make(byte_model, "gamma=3")._spec([])
    assert (spec.device, spec.dtype, spec.quantization) == ("cpu", "bfloat16", None)
    assert spec.drafting["drafter"] == "copyspec"
    assert spec.drafting["gamma"] == 3


def test_a_paired_run_has_both_answers(byte_model: Path) -> None:
    lm = make(byte_model, "paired=true")
    drafting, plain = LLM.made
    assert "speculative_config" not in plain.options
    assert {
        drafting.options["gpu_memory_utilization"],
        plain.options["gpu_memory_utilization"],
    } == {0.45}
    recorded = rows(lm.generate_until(instances(contexts=TEXTS), disable_tqdm=True))
    for row in recorded:
        assert row.baseline is not None
        assert row.baseline.agreement == "identical"
        assert row.baseline.counts.num_forwards == row.counts.num_tokens
        assert row.baseline.token_ids == row.token_ids
    assert any(row.attempts for row in recorded)


def test_answers_that_differ_are_said_to_and_the_baselines_are_handed_on(byte_model: Path) -> None:
    lm = make(byte_model, "paired=true")
    LLM.made[0].wrong_after = 7
    answers = lm.generate_until(instances(contexts=TEXTS), disable_tqdm=True)
    for text, answer, row in zip(TEXTS, answers, rows(answers), strict=True):
        assert answer == row.text == (text + text).encode()[:40].decode("utf-8", "replace")
        assert row.baseline is not None
        assert row.baseline.difference is not None
        assert row.baseline.difference.position == 7
        assert row.baseline.agreement == "diverged", "nothing says that it is a near-tie"


def test_the_warm_up_is_not_copied_from(byte_model: Path) -> None:
    lm = make(byte_model, "drafter=suffix,store=true", batch_size=1)
    [row] = rows(lm.generate_until(instances(contexts=["abcdefghij"]), disable_tqdm=True))
    assert all(source != "store" for _, _, source in row.attempts)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("drafter=sufix", "unknown drafter 'sufix'"),
        ("tensor_paralel_size=2", "unknown model_arg 'tensor_paralel_size'"),
        ("exact=true", "unknown model_arg 'exact'"),
        ("base=hf", "base is set by copyspec-vllm itself"),
        ("gamma=3,store=true", "store=true is not for drafter=copyspec"),
        ("paired=1", "paired=1 is neither true nor false"),
        ("data_parallel_size=2", "data_parallel_size=2: lm-eval would load the model inside"),
        ("store=nowhere", "store=nowhere: no such file"),
    ],
)
def test_what_cannot_be_is_refused_before_anything_is_loaded(
    byte_model: Path, options: str, message: str
) -> None:
    with pytest.raises(OptionError, match=message):
        make(byte_model, options)
    assert not LLM.made


def test_without_vllm_the_message_says_what_to_install(
    byte_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("copyspec_eval.harness.vllm_lm.find_spec", lambda name: None)
    with pytest.raises(OptionError, match=r"pip install 'copyspec-eval\[vllm\]'"):
        make(byte_model)


@pytest.mark.parametrize(
    ("num_tokens", "accepted", "last"),
    [
        ([1, 3, 4], [2, 3], 3),  # nothing cut
        ([1, 3, 3], [2, 3], 3),  # the model's own token cut off
        ([1, 3, 2], [2, 3], 2),  # and one of the draft
        ([1, 3, 1], [2, 3], 1),
        ([1, 3, 1], [2, 0], 0),
    ],
)
def test_the_last_draft_is_cut_with_the_answer(
    num_tokens: list[int], accepted: list[int], last: int
) -> None:
    made = attempts([5, 5], accepted, sum(num_tokens), len(num_tokens), ["context"])
    assert made == (Attempt(5, 2), Attempt(5, last))
    assert counts_by_source(made) == {"context": DraftCounts(2, 10, 2 + last)}
