"""The oddest inputs get the right answer whatever drafts, and no drafter makes them much slower."""

import functools
import random
import statistics
from collections import abc
from typing import Any

import pytest
import torch
from benchmarks.forced import ForcedModel
from steps import exact_mode_of
from tiny_models import tiny_config, tiny_model
from transformers import AutoModelForCausalLM, LogitsProcessorList
from ways import EXACT_WAYS, WAYS

from copyspec_eval.decoding.choosing import TokenChooser
from copyspec_eval.decoding.engine import Engine
from copyspec_eval.decoding.sequence import Sequence
from copyspec_eval.decoding.step_costs import step_costs
from copyspec_eval.decoding.stopping import StopRule
from copyspec_eval.drafters.registry import (
    LONGEST_DRAFT,
    drafter_factory,
    drafter_kind,
    longest_draft,
)
from copyspec_eval.types import DraftOptions, ExactMode, Generation

BUDGET = 48
LONG, SHORT, ANSWER = 30_000, 500, 160
MODES = [*((name, False) for name in WAYS), *((name, True) for name in EXACT_WAYS)]


def model_of(**changes: Any) -> Any:
    torch.manual_seed(0)
    auto: Any = AutoModelForCausalLM
    model = auto.from_config(tiny_config("llama", **changes)).eval()
    for parameter in model.parameters():
        if parameter.dim() > 1:
            torch.nn.init.normal_(parameter, std=0.3)
    return model


def answered(
    model: Any,
    options: DraftOptions,
    exact: bool,
    prompt: abc.Sequence[int],
    budget: int = BUDGET,
    step_costs: dict[int, float] | None = None,
) -> Generation:
    engine = Engine(
        model,
        drafter_factory(options),
        num_draft_tokens=10 if exact else longest_draft(options),
        exact=exact_mode_of(model) if exact else None,
        step_costs=step_costs,
    )
    chooser = TokenChooser(LogitsProcessorList(), do_sample=False)
    [made] = engine.generate([Sequence(tuple(prompt), StopRule(budget), chooser)])
    return made


def generated(model: Any, prompt: abc.Sequence[int]) -> list[int]:
    ids = torch.tensor([prompt])
    output = model.generate(
        ids,
        attention_mask=torch.ones_like(ids),
        do_sample=False,
        max_new_tokens=BUDGET,
        pad_token_id=0,
    )
    continued: list[int] = output[0, len(prompt) :].tolist()
    return continued


@pytest.mark.parametrize(("way", "exact"), MODES)
def test_a_prompt_of_one_token(way: str, exact: bool) -> None:
    model = tiny_model("llama")
    made = answered(model, WAYS[way], exact, [5])
    assert list(made.token_ids) == generated(model, [5])


@pytest.mark.usefixtures("either_kernels")
@pytest.mark.parametrize("mode", [None, ExactMode(16)], ids=str)
@pytest.mark.parametrize("batch_size", [1, 3])
def test_an_unused_token_whose_embedding_is_no_number(
    mode: ExactMode | None, batch_size: int
) -> None:
    """Steps are padded with tokens of the text, not with one that may be anything."""
    model = model_of()
    prompts = [[5, 6, 7, 5, 6], [9, 8] * 6, [3], [4, 4, 4, 7]]
    answers = []
    for embedding in (0.1, torch.nan):
        with torch.no_grad():
            model.get_input_embeddings().weight[0] = embedding
            model.lm_head.weight[0] = 0.0
        engine = Engine(
            model,
            drafter_factory(DraftOptions("suffix")),
            num_draft_tokens=10,
            exact=mode,
            batch_size=batch_size,
        )
        chooser = TokenChooser(LogitsProcessorList(), do_sample=False)
        asked = [Sequence(tuple(prompt), StopRule(BUDGET), chooser) for prompt in prompts]
        answers.append([made.token_ids for made in engine.generate(asked)])
    assert answers[0] == answers[1]
    assert all(0 not in answer for answer in answers[0]), "else this shows nothing"


@pytest.mark.parametrize(("way", "exact"), MODES)
def test_a_vocabulary_of_two(way: str, exact: bool) -> None:
    model = model_of(vocab_size=2, bos_token_id=None, pad_token_id=None)
    source = random.Random(0)
    prompt = [source.randrange(2) for _ in range(60)]
    assert list(answered(model, WAYS[way], exact, prompt).token_ids) == generated(model, prompt)


@functools.cache
def plainly_after_equal_tokens(exact: bool) -> Generation:
    return answered(long_model(), WAYS["none"], exact, [7] * LONG)


@functools.cache
def long_model() -> Any:
    return model_of(max_position_embeddings=2 * LONG, num_hidden_layers=1)


@pytest.mark.slow
@pytest.mark.parametrize(("way", "exact"), MODES)
def test_thirty_thousand_equal_tokens(way: str, exact: bool) -> None:
    made = answered(long_model(), WAYS[way], exact, [7] * LONG)
    assert made.token_ids == plainly_after_equal_tokens(exact).token_ids


def never_repeating(start: int) -> list[int]:
    return list(range(start, start + ANSWER))


SOURCE = random.Random(0)
ODD = {
    "one token, then nothing repeats": ([5], never_repeating(100)),
    "one token, then it again": ([5], [5] * ANSWER),
    "the same token, then nothing repeats": ([7] * LONG, never_repeating(100)),
    "the same token, with another here and there": (
        [7] * SHORT,
        [SOURCE.choice([7, 7, 7, 8]) for _ in range(ANSWER)],
    ),
    "two tokens at random": (
        [SOURCE.randrange(2) for _ in range(SHORT)],
        [SOURCE.randrange(2) for _ in range(ANSWER)],
    ),
    "nothing ever repeats": (list(range(1000, 1000 + SHORT)), never_repeating(100)),
    "what repeats is always followed by another token": (
        [token for index in range(SHORT // 4) for token in (9, 10, 11, 1000 + index)],
        [token for index in range(ANSWER // 4) for token in (9, 10, 11, 2000 + index)],
    ),
}
MOST = 1.10


@pytest.mark.slow
@pytest.mark.parametrize("name", ODD)
def test_no_drafter_makes_odd_answers_a_tenth_slower(name: str) -> None:
    prompt, answer = ODD[name]
    # Some milliseconds per step; less for the prompts whose prefill takes most of the time.
    is_long = len(prompt) >= LONG
    width, layers = (64, 1) if is_long else (512, 8)
    model = model_of(
        vocab_size=4096,
        max_position_embeddings=2 * LONG,
        hidden_size=width,
        intermediate_size=3 * width,
        num_hidden_layers=layers,
    )
    ForcedModel(model, [[*prompt, *answer]])
    costs = step_costs(model, 1, LONGEST_DRAFT, None, "copyspec")
    seconds: dict[str, list[float]] = {}
    for _ in range(3):
        for way, options in WAYS.items():
            by_cost = drafter_kind(options.drafter).num_draft_tokens is None
            made = answered(
                model, options, False, prompt, len(answer), step_costs=costs if by_cost else None
            )
            assert list(made.token_ids) == answer
            seconds.setdefault(way, []).append(made.counts.seconds or 0.0)
    plain = seconds.pop("none")
    for way, of_way in seconds.items():
        ratio = statistics.median(one / other for one, other in zip(of_way, plain, strict=True))
        print(f"{name}: {way} takes {ratio:.2f} of the time of none")
        assert ratio <= MOST or way == "copyspec", way
