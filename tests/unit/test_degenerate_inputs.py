"""The oddest inputs get the right answer whatever drafts, and no drafter makes them much slower."""

import functools
import random
import statistics
from collections import abc
from typing import Any

import pytest
import torch
from asking import SUFFIX, asked, engine, generated, model_from
from benchmarks.forced import ForcedModel
from steps import exact_mode_of
from tiny_models import tiny_config, tiny_model
from ways import EXACT_WAYS, WAYS

from copyspec_eval.decoding.step_costs import step_costs
from copyspec_eval.drafters.registry import LONGEST_DRAFT, drafter_kind, longest_draft
from copyspec_eval.types import DraftOptions, ExactMode, Generation

BUDGET = 48
LONG, SHORT, ANSWER = 30_000, 500, 160
MODES = [*((name, False) for name in WAYS), *((name, True) for name in EXACT_WAYS)]


def model_of(**changes: Any) -> Any:
    return model_from(tiny_config("llama", **changes))


def answered(
    model: Any,
    options: DraftOptions,
    exact: bool,
    prompt: abc.Sequence[int],
    budget: int = BUDGET,
    costs: dict[int, float] | None = None,
) -> Generation:
    mode, longest = (exact_mode_of(model), 10) if exact else (None, longest_draft(options))
    [made] = engine(model, options, mode, longest, step_costs=costs).generate(
        asked([prompt], budget)
    )
    return made


@pytest.mark.parametrize(("way", "exact"), MODES)
def test_a_prompt_of_one_token_and_a_vocabulary_of_two(way: str, exact: bool) -> None:
    source = random.Random(0)
    two = model_of(vocab_size=2, bos_token_id=None, pad_token_id=None)
    coins = [source.randrange(2) for _ in range(60)]
    for model, prompt in ((tiny_model("llama"), [5]), (two, coins)):
        made = answered(model, WAYS[way], exact, prompt)
        assert list(made.token_ids) == generated(model, prompt, BUDGET)


@pytest.mark.usefixtures("either_kernels")
@pytest.mark.parametrize("mode", [None, ExactMode(16)], ids=str)
@pytest.mark.parametrize("batch_size", [1, 3])
def test_an_unused_token_whose_embedding_is_nan(mode: ExactMode | None, batch_size: int) -> None:
    """Steps are padded with tokens of the text, not with one that may be anything."""
    model = model_of()
    prompts = [[5, 6, 7, 5, 6], [9, 8] * 6, [3], [4, 4, 4, 7]]
    answers = []
    for embedding in (0.1, torch.nan):
        with torch.no_grad():
            model.get_input_embeddings().weight[0] = embedding
            model.lm_head.weight[0] = 0.0
        made = engine(model, SUFFIX, mode, batch_size=batch_size).generate(asked(prompts, BUDGET))
        answers.append([answer.token_ids for answer in made])
    assert answers[0] == answers[1]
    assert all(0 not in answer for answer in answers[0]), "else this shows nothing"


@functools.cache
def after_equal_tokens(way: str, exact: bool) -> Generation:
    return answered(long_model(), WAYS[way], exact, [7] * LONG)


@functools.cache
def long_model() -> Any:
    return model_of(max_position_embeddings=2 * LONG, num_hidden_layers=1)


@pytest.mark.slow
@pytest.mark.parametrize(("way", "exact"), MODES)
def test_thirty_thousand_equal_tokens(way: str, exact: bool) -> None:
    assert after_equal_tokens(way, exact).token_ids == after_equal_tokens("none", exact).token_ids


SOURCE = random.Random(0)
ODD = {
    "one token, then nothing repeats": ([5], [*range(100, 100 + ANSWER)]),
    "one token, then it again": ([5], [5] * ANSWER),
    "the same token, then nothing repeats": ([7] * LONG, [*range(100, 100 + ANSWER)]),
    "the same token, with another here and there": (
        [7] * SHORT,
        [SOURCE.choice([7, 7, 7, 8]) for _ in range(ANSWER)],
    ),
    "two tokens at random": (
        [SOURCE.randrange(2) for _ in range(SHORT)],
        [SOURCE.randrange(2) for _ in range(ANSWER)],
    ),
    "nothing ever repeats": (list(range(1000, 1000 + SHORT)), [*range(100, 100 + ANSWER)]),
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
            of_way = costs if by_cost else None
            made = answered(model, options, False, prompt, len(answer), of_way)
            assert list(made.token_ids) == answer
            seconds.setdefault(way, []).append(made.counts.seconds or 0.0)
    plain = seconds.pop("none")
    for way, drafted in seconds.items():
        ratio = statistics.median(one / other for one, other in zip(drafted, plain, strict=True))
        assert ratio <= MOST or way == "copyspec", way
