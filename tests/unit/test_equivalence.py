"""The promise: whatever is drafted, the output is token for token what `model.generate` gives."""

import functools
import itertools
import math
import time
from collections import abc
from collections.abc import Callable
from typing import Any

import pytest
import torch
from asking import engine, generated, greedy
from doubles import AdversarialDrafter, OracleDrafter, RandomDrafter, RandomTreeDrafter
from steps import exact_mode_of
from tiny_models import ARCHITECTURES, VOCABULARY, prompts, skip_if_refused, tiny_model
from transformers import GenerationConfig, TemperatureLogitsWarper
from ways import WAYS

from copyspec_eval.decoding.choosing import TokenChooser, argmax_tokens
from copyspec_eval.decoding.model_support import check_config
from copyspec_eval.decoding.sequence import Sequence
from copyspec_eval.decoding.stopping import StopRule
from copyspec_eval.decoding.trial import check_cache
from copyspec_eval.drafters.base import Drafter
from copyspec_eval.drafters.registry import drafter_factory
from copyspec_eval.types import DraftOptions, Generation

BUDGET = 32
VARIED = ["qwen2", "gemma2", "gpt2", "mixtral"]
"""Whole attention, windows, learned positions, experts; the others are among the slow tests."""
OTHERS = [name for name in ARCHITECTURES if name not in VARIED]
SLOW = pytest.mark.slow
VARIED_FIRST = [*VARIED, *(pytest.param(name, marks=SLOW) for name in OTHERS)]
TWO_FIRST = [*VARIED[:2], *(pytest.param(name, marks=SLOW) for name in [*VARIED[2:], *OTHERS])]
Answers = dict[tuple[int, ...], list[int]]


@functools.cache
def expected(model_type: str, penalty: float = 1.0, eos_id: int | None = None) -> Answers:
    settings: dict[str, Any] = {"repetition_penalty": penalty, "eos_token_id": eos_id}
    model = tiny_model(model_type)
    return {prompt: generated(model, prompt, BUDGET, **settings) for prompt in prompts()}


EARLIER = {
    "earlier": DraftOptions("suffix", store=("runs/base",)),
    "earlier+tree": DraftOptions("suffix", store=("runs/base",), tree=True),
}
"""Drafters that begin with answers of earlier runs."""


def earlier_answers(answer_ids: list[int]) -> list[list[int]]:
    """Two to the same request: one of another model, and one that changes every tenth token."""
    changed = [(id + (place % 10 == 7)) % VOCABULARY for place, id in enumerate(answer_ids)]
    return [answer_ids[::-1], changed]


def drafter_makers(answers: Answers) -> dict[str, Callable[[], Drafter]]:
    """Every registered drafter with each set of its switches, and four that no one would add."""
    makers: dict[str, Callable[[], Drafter]] = {
        name: drafter_factory(options) for name, options in WAYS.items()
    }
    of_all = [ids for answer_ids in answers.values() for ids in earlier_answers(answer_ids)]
    makers |= {name: drafter_factory(options, of_all) for name, options in EARLIER.items()}
    for double in (OracleDrafter, AdversarialDrafter, RandomDrafter, RandomTreeDrafter):
        makers[double.__name__] = functools.partial(double, answers, VOCABULARY)
    return makers


DRAFTER_NAMES = sorted(drafter_makers({}))
IN_BOTH_MODES = [
    pytest.param(name, exact, id=f"{name}-{'exact' if exact else 'inexact'}")
    for name in DRAFTER_NAMES
    for exact in (True, False)
    if not (exact and "tree" in name.lower())
]
"""Drafters in both modes; trees are for `exact=false` alone."""


def answer(
    model_type: str,
    drafter: str,
    batch_size: int,
    exact: bool,
    stop_rule: StopRule | None = None,
    repetition_penalty: float = 1.0,
    temperature: float | None = None,
) -> dict[tuple[int, ...], Generation]:
    model = tiny_model(model_type)
    settings = GenerationConfig(repetition_penalty=repetition_penalty)
    plain = expected(model_type, repetition_penalty)
    sequences = []
    for seed, prompt in enumerate(prompts()):
        processors = model._get_logits_processor(settings, len(prompt))
        if temperature is not None:
            processors.append(TemperatureLogitsWarper(temperature))
        chooser = TokenChooser(processors, do_sample=temperature is not None, seed=seed)
        earlier = earlier_answers(plain[prompt]) if drafter in EARLIER else []
        sequences.append(Sequence(prompt, stop_rule or StopRule(BUDGET), chooser, earlier))
    mode = exact_mode_of(model, batch_size) if exact else None
    made = engine(model, drafter_makers(plain)[drafter], mode, batch_size=batch_size)
    return dict(zip(prompts(), made.generate(sequences), strict=True))


def first_forwards(model_type: str, batch_size: int, exact: bool) -> int:
    """At a fixed width the prefill carries no draft and gives one token."""
    return int(exact and exact_mode_of(tiny_model(model_type), batch_size).width is not None)


def tokens(answers: dict[tuple[int, ...], Generation]) -> Answers:
    return {prompt: list(generation.token_ids) for prompt, generation in answers.items()}


@pytest.mark.parametrize("model_type", ARCHITECTURES)
def test_model_is_accepted(model_type: str) -> None:
    skip_if_refused(model_type)
    check_config(tiny_model(model_type).config)
    for exact in (True, False):
        check_cache(tiny_model(model_type), "copyspec", exact=exact)


@pytest.mark.parametrize("batch_size", [1, 4])
@pytest.mark.parametrize(("drafter", "exact"), IN_BOTH_MODES)
@pytest.mark.parametrize("model_type", VARIED_FIRST)
def test_the_tokens_of_generate(
    model_type: str, drafter: str, batch_size: int, exact: bool
) -> None:
    answers = answer(model_type, drafter, batch_size, exact)
    assert tokens(answers) == expected(model_type)
    for generation in answers.values():
        accepted = sum(attempt.num_accepted for attempt in generation.attempts)
        assert generation.counts.num_forwards == len(generation.token_ids) - accepted
        if drafter == "OracleDrafter":
            is_fixed = first_forwards(model_type, batch_size, exact)
            assert generation.counts.num_forwards == is_fixed + -(-(BUDGET - is_fixed) // 11)
        if drafter in EARLIER:
            assert generation.counts.num_forwards < BUDGET / 2
            assert "earlier" in (generation.counts.drafts or {})
        if "recycle" in drafter:
            assert "recycled" in (generation.counts.drafts or {})
        if drafter in ("none", "AdversarialDrafter"):
            assert generation.counts.num_forwards == BUDGET


@functools.cache
def sampled_plainly(model_type: str) -> Answers:
    return tokens(answer(model_type, "none", batch_size=1, exact=False, temperature=0.7))


@pytest.mark.parametrize("batch_size", [1, 4])
@pytest.mark.parametrize(("drafter", "exact"), IN_BOTH_MODES)
@pytest.mark.parametrize("model_type", TWO_FIRST)
def test_the_draws_of_plain_decoding(
    model_type: str, drafter: str, batch_size: int, exact: bool
) -> None:
    wanted = sampled_plainly(model_type)
    assert wanted != expected(model_type), "nothing was drawn"
    assert tokens(answer(model_type, drafter, batch_size, exact, temperature=0.7)) == wanted


def decode(token_ids: abc.Sequence[int]) -> str:
    return "".join(f"<{token}>" for token in token_ids)


def cut(answers: Answers, stop: str) -> Answers:
    """Each answer up to the token that completes `stop`."""
    remaining = {}
    for prompt, answer_ids in answers.items():
        ends = [n for n in range(1, len(answer_ids) + 1) if stop in decode(answer_ids[:n])]
        remaining[prompt] = answer_ids[: ends[0]] if ends else answer_ids
    return remaining


@functools.cache
def ending(model_type: str) -> tuple[int, str, Answers]:
    """An EOS that ends the first answer, a stop string that ends the second, and what is left.

    Both ends lie where a right draft after the prefill's token would lie.
    """
    penalised = expected(model_type, 1.3)
    first, second = prompts()[:2]
    for eos_id in penalised[first][3:]:
        ended = expected(model_type, 1.3, eos_id)
        for one, two in itertools.pairwise(penalised[second][3:]):
            # Across two tokens, and beginning in the middle of the first.
            stop = f"{one}><{two}"[1:]
            remaining = cut(ended, stop)
            inside = all(2 <= len(remaining[prompt]) <= 11 for prompt in (first, second))
            if inside and remaining[first][-1] == eos_id and remaining[second][-1] == two != eos_id:
                return eos_id, stop, remaining
    raise AssertionError(f"no such ends in the answers of {model_type}")


@pytest.mark.parametrize("batch_size", [1, 4])
@pytest.mark.parametrize(("drafter", "exact"), IN_BOTH_MODES)
@pytest.mark.parametrize("model_type", VARIED_FIRST)
def test_penalty_eos_and_stop_string_inside_drafts(
    model_type: str, drafter: str, batch_size: int, exact: bool
) -> None:
    assert expected(model_type, 1.3) != expected(model_type), "the penalty changes nothing here"
    eos_id, stop, wanted = ending(model_type)
    rule = StopRule(BUDGET, {eos_id}, [stop], decode)
    answers = answer(model_type, drafter, batch_size, exact, rule, repetition_penalty=1.3)
    assert tokens(answers) == wanted
    assert answers[prompts()[0]].counts.finish_reason == "eos"
    assert answers[prompts()[1]].counts.finish_reason == "stop"
    if drafter == "OracleDrafter":
        forwards = {answers[prompt].counts.num_forwards for prompt in prompts()[:2]}
        assert forwards == {1 + first_forwards(model_type, batch_size, exact)}, "in the first draft"


def test_finished_rows_are_refilled_in_order_and_reported_as_they_finish() -> None:
    model = tiny_model("llama")
    budgets = (2, 30, 3, 5, 1)
    sequences = [
        Sequence(prompt, StopRule(budget), greedy())
        for prompt, budget in zip(prompts(), budgets, strict=True)
    ]
    for exact in (True, False):
        finished: list[int] = []
        mode = exact_mode_of(model, batch_size=2) if exact else None
        made = engine(model, exact=mode, batch_size=2)

        def finish(index: int, generation: Generation, done: list[int] = finished) -> None:
            done.append(index)
            time.sleep(0.2)

        started = time.perf_counter()
        answers = made.generate([sequence.restarted() for sequence in sequences], finish)
        worked = time.perf_counter() - started - 5 * 0.2
        counts = [generation.counts for generation in answers]
        assert max(of_one.latency_seconds or math.inf for of_one in counts) <= worked
        shares = sum(of_one.seconds or math.inf for of_one in counts)
        assert shares <= worked, "the caller's time is counted for no sequence"
        assert finished == [0, 2, 4, 3, 1] or finished == [0, 2, 3, 4, 1]
        for prompt, budget, generation in zip(prompts(), budgets, answers, strict=True):
            assert list(generation.token_ids) == expected("llama")[prompt][:budget]


def test_float64_is_compared_as_generate_compares_it() -> None:
    """transformers rounds float64 logits to float32 before the argmax."""
    logits = torch.tensor([1.0, 1.0 + 1e-12], dtype=torch.float64)
    assert argmax_tokens(logits[None], [slice(1)]) == [[0]], "of equals the first, as torch has it"
    assert greedy().choose([1], logits) == 0


def test_log_likelihoods_run_on_the_model_as_it_was_loaded() -> None:
    model = tiny_model("mixtral")
    before = (model.config._attn_implementation, model.config._experts_implementation)
    answer("mixtral", "none", 1, True)
    assert (model.config._attn_implementation, model.config._experts_implementation) == before
