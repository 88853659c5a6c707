"""What `--model copyspec-vllm` records of answers that vLLM itself gives; see test_inside_vllm."""

import gc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from real_vllm import list_prompts
from timed_models import check_counts, instances, rows

from copyspec_eval.records import TurnRecord
from copyspec_eval.serving.proposer import NUM_DRAFT_TOKENS

vllm = pytest.importorskip("vllm", reason="NOT TESTED without vLLM: see scripts/vllm_environment")
pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("vllm_in_this_process")]
PROMPTS = list_prompts("a harbour", "an old mill")


Make = Callable[..., Any]


@pytest.fixture
def make(real_model: Path) -> Make:
    """Makes a model; the earlier one of a test ends then, since all are in this process."""

    def made(max_model_len: int = 2048) -> Any:
        from copyspec_eval.harness.vllm_lm import CopySpecVLLM

        gc.collect()
        arguments = {"pretrained": str(real_model), "max_model_len": max_model_len}
        arguments |= {"dtype": "bfloat16", "enforce_eager": True}
        return CopySpecVLLM.create_from_arg_obj(arguments, {"batch_size": "auto"})

    return made


def check(answered: list[TurnRecord]) -> None:
    for row in answered:
        check_counts(row)
    assert any(row.spans for row in answered)


def test_answers_that_end_at_a_stop_string_have_their_drafts(make: Make) -> None:
    settings = {"until": ["item 6"], "max_gen_toks": 200}
    answered = rows(make().generate_until(instances(settings, contexts=PROMPTS)))
    check(answered)
    stopped = [row for row in answered if row.counts.finish_reason == "stop"]
    assert sum(bool(row.attempts) for row in stopped) >= 4


@pytest.mark.parametrize("room", [90, 20])
def test_close_to_the_longest_length_only_our_drafts_are_counted(make: Make, room: int) -> None:
    """There vLLM verifies zeros as drafts of all rows of the batch, and asks for none."""
    longest = max(len(make().tok_encode(prompt)) for prompt in PROMPTS) + room
    lm = make(max_model_len=longest)
    answered = rows(lm.generate_until(instances({"max_gen_toks": room}, contexts=PROMPTS)))
    attempts = [attempt for row in answered for attempt in row.attempts]
    if room < NUM_DRAFT_TOKENS:
        assert not attempts
    else:
        check(answered)
        drafted = sum(attempt.num_drafted for attempt in attempts)
        assert drafted < 2 * sum(attempt.num_accepted for attempt in attempts)


def expand(
    output: Any, source: Any, ends: Any, replace_from: int, replace_to: int, *_: Any
) -> None:
    """The patch of docs/upstream.md: vLLM's writes into a copy where its result is no int64."""
    counts = ends.diff(prepend=ends.new_zeros(1))
    output.copy_(source.where(source != replace_from, replace_to).repeat_interleave(counts))


@pytest.mark.parametrize("is_patched", [False, True])
def test_vllm_garbles_greedy_answers_beside_sampled_ones(
    make: Make, monkeypatch: pytest.MonkeyPatch, is_patched: bool
) -> None:
    """When this fails without the patch, vLLM is mended, and no request need be refused."""
    if is_patched:
        monkeypatch.setattr("vllm.utils.cpu_triton_utils._expand_kernel_impl", expand)
    llm = make().model
    greedy = vllm.SamplingParams(temperature=0, max_tokens=60)
    sampled = vllm.SamplingParams(temperature=0.7, max_tokens=60)
    alone = llm.generate(PROMPTS[:3], greedy, use_tqdm=False)
    neighbour = llm.generate(PROMPTS[:4], [greedy, greedy, greedy, sampled], use_tqdm=False)
    pairs = zip(alone, neighbour, strict=False)
    assert {a.outputs[0].text == b.outputs[0].text for a, b in pairs} == {is_patched}
