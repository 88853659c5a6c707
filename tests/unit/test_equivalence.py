"""The promise: whatever is drafted, the output is token for token what `model.generate` gives."""

import collections
import functools
import itertools
import random
from dataclasses import replace
from typing import Any

import pytest
import torch
from asking import SUFFIX, asked, engine, generated, greedy, model_from
from benchmarks.forced import ForcedModel
from doubles import AdversarialDrafter, OracleDrafter, RandomDrafter, RandomTreeDrafter
from steps import exact_mode_of
from tiny_models import VARIED_FIRST, VOCABULARY, prompts, quick, tiny_config, tiny_model
from transformers import GenerationConfig, TemperatureLogitsWarper
from ways import EXACT_WAYS, WAYS

from copyspec_eval.decoding import stopwatch
from copyspec_eval.decoding.choosing import TokenChooser, argmax_tokens
from copyspec_eval.decoding.sequence import Sequence
from copyspec_eval.decoding.stopping import StopRule
from copyspec_eval.drafters.registry import drafter_factory, drafter_kind, longest_draft
from copyspec_eval.drafters.thresholds import StepClock
from copyspec_eval.types import DraftOptions, ExactMode

BUDGET = 32
TWO_FIRST = quick("qwen2", "gemma2")


@functools.cache
def expected(model_type, penalty=1.0, eos_id=None):
    """What `model.generate` gives, by prompt."""
    settings = {"repetition_penalty": penalty, "eos_token_id": eos_id}
    model = tiny_model(model_type)
    return {prompt: generated(model, prompt, BUDGET, **settings) for prompt in prompts()}


STORED = DraftOptions("suffix", store=("runs/base",))
EARLIER = {"earlier": STORED, "earlier+tree": replace(STORED, tree=True)}
"""Drafters that begin with answers of earlier runs."""
DOUBLES = (OracleDrafter, AdversarialDrafter, RandomDrafter, RandomTreeDrafter)


def earlier_answers(answer_ids):
    """Two to the same request: one of another model, and one that changes every tenth token."""
    changed = [(id + (place % 10 == 7)) % VOCABULARY for place, id in enumerate(answer_ids)]
    return [answer_ids[::-1], changed]


def drafter_makers(answers):
    """Every registered drafter with each set of its switches, and four that no one would add."""
    of_all = [ids for answer_ids in answers.values() for ids in earlier_answers(answer_ids)]
    return {
        **{name: drafter_factory(options) for name, options in WAYS.items()},
        **{name: drafter_factory(options, of_all) for name, options in EARLIER.items()},
        **{each.__name__: functools.partial(each, answers, VOCABULARY) for each in DOUBLES},
    }


IN_BOTH_MODES = [
    pytest.param(name, exact, id=f"{name}-{'exact' if exact else 'inexact'}")
    for name in sorted(drafter_makers({}))
    for exact in (True, False)
    if not (exact and "tree" in name.lower())
]
"""Drafters in both modes; trees are for `exact=false` alone."""


def answer(model_type, drafter, batch_size, exact, rule=None, penalty=1.0, temperature=None):
    model, plain = tiny_model(model_type), expected(model_type, penalty)
    settings = GenerationConfig(repetition_penalty=penalty)
    sequences = []
    for seed, prompt in enumerate(prompts()):
        processors = model._get_logits_processor(settings, len(prompt))
        if temperature is not None:
            processors.append(TemperatureLogitsWarper(temperature))
        chooser = TokenChooser(processors, do_sample=temperature is not None, seed=seed)
        earlier = earlier_answers(plain[prompt]) if drafter in EARLIER else []
        sequences.append(Sequence(prompt, rule or StopRule(BUDGET), chooser, earlier))
    mode = exact_mode_of(model, batch_size) if exact else None
    made = engine(model, drafter_makers(plain)[drafter], mode, batch_size=batch_size)
    return dict(zip(prompts(), made.generate(sequences), strict=True))


def first_forwards(model_type, batch_size, exact):
    """At a fixed width the prefill carries no draft and gives one token."""
    return int(exact and exact_mode_of(tiny_model(model_type), batch_size).width is not None)


def tokens(answers):
    return {prompt: list(generation.token_ids) for prompt, generation in answers.items()}


@pytest.mark.parametrize("batch_size", [1, 4])
@pytest.mark.parametrize(("drafter", "exact"), IN_BOTH_MODES)
@pytest.mark.parametrize("model_type", VARIED_FIRST)
def test_the_tokens_of_generate(model_type, drafter, batch_size, exact):
    answers = answer(model_type, drafter, batch_size, exact)
    assert tokens(answers) == expected(model_type)
    for generation in answers.values():
        counts, drafts = generation.counts, generation.counts.drafts or {}
        accepted = sum(attempt.num_accepted for attempt in generation.attempts)
        assert counts.num_forwards == len(generation.token_ids) - accepted
        if drafter == "OracleDrafter":
            is_fixed = first_forwards(model_type, batch_size, exact)
            assert counts.num_forwards == is_fixed + -(-(BUDGET - is_fixed) // 11)
        if drafter in EARLIER:
            assert counts.num_forwards < BUDGET / 2
        assert ("earlier" in drafts) == (drafter in EARLIER)
        if drafter in ("none", "AdversarialDrafter"):
            assert counts.num_forwards == BUDGET


@functools.cache
def sampled_plainly(model_type):
    return tokens(answer(model_type, "none", batch_size=1, exact=False, temperature=0.7))


@pytest.mark.parametrize("batch_size", [pytest.param(1, marks=pytest.mark.slow), 4])
@pytest.mark.parametrize(("drafter", "exact"), IN_BOTH_MODES)
@pytest.mark.parametrize("model_type", TWO_FIRST)
def test_the_draws_of_plain_decoding(model_type, drafter, batch_size, exact):
    wanted = sampled_plainly(model_type)
    assert wanted != expected(model_type), "nothing was drawn"
    assert tokens(answer(model_type, drafter, batch_size, exact, temperature=0.7)) == wanted


def decode(token_ids):
    return "".join(f"<{token}>" for token in token_ids)


def cut(answer_ids, stop):
    """An answer up to the token that completes `stop`."""
    numbers = range(1, len(answer_ids) + 1)
    return answer_ids[: next((n for n in numbers if stop in decode(answer_ids[:n])), None)]


@functools.cache
def ending(model_type):
    """An EOS that ends the first answer, a stop string that ends the second, and what is left.

    Both ends lie where a right draft after the prefill's token would lie.
    """
    penalised = expected(model_type, 1.3)
    first, second = prompts()[:2]
    pairs = itertools.pairwise(penalised[second][3:])
    for eos_id, (one, two) in itertools.product(penalised[first][3:], pairs):
        # Across two tokens, and beginning in the middle of the first.
        stop, ended = f"{one}><{two}"[1:], expected(model_type, 1.3, eos_id)
        remaining = {prompt: cut(answer_ids, stop) for prompt, answer_ids in ended.items()}
        inside = all(2 <= len(remaining[prompt]) <= 11 for prompt in (first, second))
        if inside and remaining[first][-1] == eos_id and remaining[second][-1] == two != eos_id:
            return eos_id, stop, remaining
    raise AssertionError(f"no such ends in the answers of {model_type}")


@pytest.mark.parametrize("batch_size", [pytest.param(1, marks=pytest.mark.slow), 4])
@pytest.mark.parametrize(("drafter", "exact"), IN_BOTH_MODES)
@pytest.mark.parametrize("model_type", TWO_FIRST)
def test_penalty_eos_and_stop_string_inside_drafts(model_type, drafter, batch_size, exact):
    assert expected(model_type, 1.3) != expected(model_type), "the penalty changes nothing here"
    eos_id, stop, wanted = ending(model_type)
    rule = StopRule(BUDGET, {eos_id}, [stop], decode)
    answers = answer(model_type, drafter, batch_size, exact, rule, penalty=1.3)
    assert tokens(answers) == wanted
    ended = [answers[prompt].counts for prompt in prompts()[:2]]
    assert [counts.finish_reason for counts in ended] == ["eos", "stop"]
    if drafter == "OracleDrafter":
        forwards = {counts.num_forwards for counts in ended}
        assert forwards == {1 + first_forwards(model_type, batch_size, exact)}, "in the first draft"


@pytest.mark.parametrize("exact", [True, False])
def test_finished_rows_are_refilled_in_order_and_reported_as_they_finish(exact, monkeypatch):
    """The clock moves by a second whenever it is read, and by an hour in the caller."""
    seconds, finished = itertools.count(), list[int]()

    def now():
        return next(seconds) + 3600 * len(finished)

    monkeypatch.setattr(stopwatch, "perf_counter", now)
    model, budgets = tiny_model("llama"), dict(zip(prompts(), (2, 30, 3, 5, 1), strict=True))
    mode = exact_mode_of(model, batch_size=2) if exact else None
    sequences = [Sequence(prompt, StopRule(most), greedy()) for prompt, most in budgets.items()]
    made = engine(model, exact=mode, batch_size=2)
    answers = made.generate(sequences, lambda index, _: finished.append(index))
    assert finished in ([0, 2, 4, 3, 1], [0, 2, 3, 4, 1])
    counts: list[Any] = [generation.counts for generation in answers]
    assert 0 < max(each.latency_seconds for each in counts) < 3600
    assert 0 < sum(each.seconds for each in counts) < 3600, "the caller's time is no answer's"
    wanted = [expected("llama")[prompt][:budget] for prompt, budget in budgets.items()]
    assert [list(generation.token_ids) for generation in answers] == wanted


def test_float64_is_compared_as_generate_compares_it():
    """transformers rounds float64 logits to float32 before the argmax."""
    logits = torch.tensor([1.0, 1.0 + 1e-12], dtype=torch.float64)
    assert argmax_tokens(logits[None], [slice(1)]) == [[0]], "of equals the first, as torch has it"
    assert greedy().choose([1], logits) == 0


def model_of(**changes):
    return model_from(tiny_config("llama", **changes))


CHOICES = random.Random(0).choices


@pytest.mark.parametrize("exact", [True, False])
def test_a_prompt_of_one_token_and_a_vocabulary_of_two(exact):
    two = model_of(vocab_size=2, bos_token_id=None, pad_token_id=None)
    for model, prompt in ((tiny_model("llama"), [5]), (two, CHOICES([0, 1], k=60))):
        for options in (EXACT_WAYS if exact else WAYS).values():
            made = engine(model, options, exact_mode_of(model) if exact else None)
            [answer] = made.generate(asked([prompt], BUDGET))
            assert list(answer.token_ids) == generated(model, prompt, BUDGET), options


@pytest.mark.usefixtures("either_kernels")
@pytest.mark.parametrize("mode", [None, ExactMode(16)], ids=str)
@pytest.mark.parametrize("batch_size", [1, 3])
def test_an_unused_token_whose_embedding_is_nan(mode, batch_size):
    """Steps are padded with tokens of the text, not with one that may be anything."""
    model = model_of()
    ragged = [[5, 6, 7, 5, 6], [9, 8] * 6, [3], [4, 4, 4, 7]]
    answers = []
    for embedding in (0.1, torch.nan):
        with torch.no_grad():
            model.get_input_embeddings().weight[0] = embedding
            model.lm_head.weight[0] = 0.0
        made = engine(model, SUFFIX, mode, batch_size=batch_size).generate(asked(ragged, BUDGET))
        answers.append([answer.token_ids for answer in made])
    assert answers[0] == answers[1]
    assert all(0 not in answer for answer in answers[0]), "else this shows nothing"


LONG, SHORT, ANSWER = 30_000, 500, 160
FRESH = [*range(100, 100 + ANSWER)]
ODD: dict[str, tuple[list[int], list[int]]] = {
    "one token, then it again": ([5], [5] * ANSWER),
    "the same token, then nothing repeats": ([7] * LONG, FRESH),
    "the same token, with another here and there": ([7] * SHORT, CHOICES([7, 7, 7, 8], k=ANSWER)),
    "nothing ever repeats": ([*range(1000, 1000 + SHORT)], FRESH),
    "what repeats is always followed by another token": (
        [token for index in range(SHORT // 4) for token in (9, 10, 11, 1000 + index)],
        [token for index in range(ANSWER // 4) for token in (9, 10, 11, 2000 + index)],
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", ODD)
def test_no_drafter_makes_odd_answers_a_tenth_slower(name):
    prompt, answer = ODD[name]
    # Some milliseconds per step; less for the prompts whose prefill takes most of the time.
    width, layers = (64, 1) if len(prompt) >= LONG else (512, 8)
    shape = {"hidden_size": width, "intermediate_size": 3 * width, "num_hidden_layers": layers}
    model = model_of(vocab_size=4096, max_position_embeddings=2 * LONG, **shape)
    ForcedModel(model, [[*prompt, *answer]])
    clock = StepClock()
    seconds: Any = collections.defaultdict(list)
    for _ in range(5):
        for way, options in WAYS.items():
            by_cost = drafter_kind(options.drafter).num_draft_tokens is None
            most, given = longest_draft(options), clock if by_cost else None
            made = engine(model, options, None, most, step_clock=given)
            [answered] = made.generate(asked([prompt], len(answer)))
            assert list(answered.token_ids) == answer
            seconds[way].append(answered.counts.seconds)
    # The fastest: what else the machine does can only add to a time.
    plain = min(seconds.pop("none"))
    for way, drafted in seconds.items():
        assert min(drafted) <= 1.10 * plain or way == "copyspec", way
