"""Our drafters inside vLLM itself, with a real model, in an environment that has vLLM:

scripts/vllm_environment FOLDER
FOLDER/bin/pytest --runslow tests/vllm
"""

import gc
import itertools
from collections import defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch
from asking import engine, greedy
from real_vllm import list_prompts
from transformers import AutoModelForCausalLM

from copyspec_eval.decoding.sequence import Sequence as Decoded
from copyspec_eval.decoding.stopping import StopRule
from copyspec_eval.harness.backends.vllm import attempts, watched
from copyspec_eval.pairs.differences import Rescorer
from copyspec_eval.serving import proposer

vllm = pytest.importorskip("vllm", reason="NOT TESTED without vLLM: see scripts/vllm_environment")
pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("vllm_in_this_process")]

MAX_TOKENS = 64
PROMPTS = list_prompts("a harbour", "an old mill", "the night market", "a railway yard")

Make = Callable[..., Any]


@pytest.fixture
def make(real_model: Path, monkeypatch: pytest.MonkeyPatch) -> Make:
    """Makes an engine; the earlier one of a test ends then, since all are in this process."""
    monkeypatch.setenv(proposer.VARIABLE, "drafter=suffix,store=true")

    def made(drafts: bool = True, **options: Any) -> Any:
        gc.collect()
        if drafts:
            options["per_request_spec_decode_metrics"] = "detailed"
            options["worker_extension_cls"] = proposer.WORKER
            ours = {"method": "custom_class", "num_speculative_tokens": proposer.NUM_DRAFT_TOKENS}
            options["speculative_config"] = {"model": proposer.NAME, **ours}
        usual = {"dtype": "bfloat16", "max_model_len": 2048, "enforce_eager": True, "seed": 0}
        return vllm.LLM(model=str(real_model), **(usual | options))

    return made


def answers(
    llm: Any, prompts: Sequence[str] = PROMPTS, lengths: Sequence[int] = (MAX_TOKENS,)
) -> Any:
    """Greedy; `lengths` are the budgets, one after the other."""
    budgets = itertools.islice(itertools.cycle(lengths), len(prompts))
    params = [vllm.SamplingParams(temperature=0, max_tokens=budget) for budget in budgets]
    return llm.generate(list(prompts), params, use_tqdm=False)


Judge = Callable[[Any, Any], int]


@pytest.fixture(scope="module")
def judge(real_model: Path) -> Judge:
    """How many answers are identical; all others are near-ties."""
    model: Any = AutoModelForCausalLM.from_pretrained(real_model, dtype=torch.bfloat16)
    rescorer = Rescorer(model, *(engine(model, num_draft_tokens=count) for count in (0, 15)))

    def num_identical(drafted: Any, plain: Any) -> int:
        identical = 0
        for ours, theirs in zip(drafted, plain, strict=True):
            sequence = Decoded(ours.prompt_token_ids, StopRule(512), greedy())
            both = (each.outputs[0].token_ids for each in (ours, theirs))
            difference = rescorer.explain(sequence, *both)
            assert difference is None or difference.agreement == "near_tie", difference
            identical += difference is None
        return identical

    return num_identical


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"max_num_seqs": 4, "num_gpu_blocks_override": 24},  # rows are preempted
        {"enable_chunked_prefill": True, "max_num_batched_tokens": 64},
        {"enable_prefix_caching": False},
        {"max_num_batched_tokens": 64, "max_num_seqs": 16},  # steps without room for every row
    ],
    ids=["usual", "preempted", "chunked", "no prefix cache", "no room"],
)
def test_answers_and_counts_are_vllms(make: Make, judge: Judge, options: dict[str, Any]) -> None:
    ragged, is_preempted = (7, 64, 1, 33, 90), "num_gpu_blocks_override" in options
    # Which of two equal prompts comes back after being preempted, a proposer cannot see.
    prompts = [*PROMPTS, *(f"{'Again: ' * is_preempted}{each}" for each in reversed(PROMPTS))]
    plain = answers(make(drafts=False), prompts, ragged)
    llm = make(**options)
    llm.collective_rpc("copyspec_restart")
    with watched(llm.llm_engine) as forwards:
        drafted = answers(llm, prompts, ragged)
    assert judge(drafted, plain) >= 24, "which near-ties turn depends on the processor"
    texts = [(list(each.prompt_token_ids), list(each.outputs[0].token_ids)) for each in drafted]
    [of_proposer] = llm.collective_rpc("copyspec_drafted", args=(texts,))
    num_attempts = 0
    # Of two requests with one prompt and one answer, a proposer cannot tell which is which.
    by_text = defaultdict[Any, list[tuple[list[int], list[int]]]](list)
    for each, ids, (made, spans) in zip(drafted, texts, of_proposer, strict=True):
        prompt_ids, output_ids = ids
        metrics = each.outputs[0].spec_decode_metrics
        counted = metrics.per_step_drafted, metrics.per_step_accepted
        of_vllm = attempts(*counted, len(output_ids), len(forwards[each.request_id]), "context")
        of_engine = [attempt.num_accepted for attempt in of_vllm]
        accepted = [attempt.num_accepted for attempt in made]
        num_attempts += len(of_vllm)
        if is_preempted:
            # Of a preempted request vLLM drops the draft, which a proposer cannot see.
            assert sum(accepted) == sum(of_engine)
            assert len(made) >= len(of_vllm)
        else:
            by_text[tuple(map(tuple, ids))].append((accepted, of_engine))
        assert sum(span.length for span in spans) == sum(accepted)
        text = [*prompt_ids, *output_ids]
        for start, length, source in spans:
            if source >= 0:
                assert text[source : source + length] == output_ids[start : start + length]
    for both in by_text.values():
        ours, theirs = zip(*both, strict=True)
        assert sorted(ours) == sorted(theirs)
    assert num_attempts > 50


def test_an_aborted_request_leaves_the_others_alone(make: Make, judge: Judge) -> None:
    plain = answers(make(drafts=False), PROMPTS[1:])
    llm = make()
    running = llm.llm_engine
    params = vllm.SamplingParams(temperature=0, max_tokens=MAX_TOKENS)
    for number, prompt in enumerate(PROMPTS):
        running.add_request(str(number), prompt, params)
    done: dict[str, Any] = {}
    for step in itertools.count():
        if not running.has_unfinished_requests():
            break
        if step == 12:
            running.abort_request(["0"])
        done |= {output.request_id: output for output in running.step() if output.finished}
    drafted = [done[str(number)] for number in range(1, len(PROMPTS))]
    assert judge(drafted, plain) >= 13


def test_memory_does_not_grow_with_the_requests(make: Make) -> None:
    llm = make(num_gpu_blocks_override=64)  # else the memory of the KV cache is filled meanwhile
    sizes = []
    for _ in range(5):
        for start in range(0, 100, 20):
            answers(llm, [f"{start + n}: {PROMPTS[n % 16]}" for n in range(20)], (8,))
        sizes.append(psutil.Process().memory_info().rss)
    # A megabyte per request would be 300 MB. By these lowest points one run grew by 55 MB, another
    # one of twelve rounds by none.
    assert min(sizes[3:]) - min(sizes[:2]) < 100_000_000, sizes
