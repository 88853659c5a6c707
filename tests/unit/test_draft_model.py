"""A draft model changes no token, and one with the target's weights is always accepted."""

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from asking import engine, greedy, model_from, sampling
from steps import exact_mode_of
from tiny_models import VOCABULARY, prompts, tiny_config, tiny_model
from transformers import (
    AutoModelForCausalLM,
    SequenceBiasLogitsProcessor,
    TemperatureLogitsWarper,
    TopPLogitsWarper,
)

from copyspec_eval.decoding.choosing import TokenChooser
from copyspec_eval.decoding.draft_model import DraftModel
from copyspec_eval.decoding.sequence import Sequence
from copyspec_eval.decoding.stopping import StopRule
from copyspec_eval.paths import TINY, model_path
from copyspec_eval.sources import read_jsonl
from copyspec_eval.types import DraftOptions, Generation

REPOSITORY = Path(__file__).resolve().parents[2]
RECORDED = REPOSITORY / "results" / "copyspec-tiny-suffix" / "turns.jsonl"
BUDGET, DELTA = 32, 3
SLOW = pytest.mark.slow
ARCHITECTURES = ["qwen2", *(pytest.param(n, marks=SLOW) for n in ("gemma2", "gpt2", "mixtral"))]
DRAFTERS = ["none", pytest.param("copyspec", marks=SLOW), "suffix"]


def plain(index: int) -> TokenChooser:
    return greedy()


def sampled(index: int) -> TokenChooser:
    return sampling(TemperatureLogitsWarper(0.7), TopPLogitsWarper(0.9), seed=index)


def noisy(model: Any, noise: float) -> Any:
    other = copy.deepcopy(model)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for weight in other.parameters():
            shaken = torch.randn(weight.shape, generator=generator, dtype=weight.dtype)
            weight.add_(noise * shaken * weight.std())
    return other


def answers(
    model: Any,
    draft_model: DraftModel | None,
    drafter: str,
    choose: Callable[[int], TokenChooser],
    batch_size: int,
    exact: bool,
) -> list[Generation]:
    options, mode = DraftOptions(drafter, gamma=2), exact_mode_of(model, batch_size)
    made = engine(
        model, options, mode if exact else None, batch_size=batch_size, draft_model=draft_model
    )
    return made.generate(
        [Sequence(ids, StopRule(BUDGET + n), choose(n)) for n, ids in enumerate(prompts())]
    )


def tokens(answers: list[Generation]) -> list[tuple[int, ...]]:
    return [answer.token_ids for answer in answers]


@pytest.mark.parametrize("exact", [True, False], ids=["exact", "inexact"])
@pytest.mark.parametrize("batch_size", [1, 4])
@pytest.mark.parametrize("choose", [plain, sampled])
@pytest.mark.parametrize("drafter", DRAFTERS)
@pytest.mark.parametrize("noise", [0.0, 0.05, pytest.param(1.0, marks=SLOW)])
@pytest.mark.parametrize("model_type", ARCHITECTURES)
def test_the_tokens_are_those_without_a_draft_model(
    model_type: str,
    noise: float,
    drafter: str,
    choose: Callable[[int], TokenChooser],
    batch_size: int,
    exact: bool,
) -> None:
    model = tiny_model(model_type)
    drafting = DraftModel(noisy(model, noise), DELTA)
    actual = answers(model, drafting, drafter, choose, batch_size, exact)
    assert tokens(actual) == tokens(answers(model, None, "none", choose, batch_size, exact))
    attempts = [a for one in actual for a in one.attempts if a.source == "model"]
    assert attempts
    if noise == 0:
        assert all(attempt.num_accepted == attempt.num_drafted for attempt in attempts)
    if noise == 0 and drafter == "none":
        for index, one in enumerate(actual):
            assert one.counts.num_forwards == 1 + -(-(BUDGET + index - 1) // (DELTA + 1))
    if noise == 1:
        num_drafted = sum(attempt.num_drafted for attempt in attempts)
        assert sum(attempt.num_accepted for attempt in attempts) < 0.5 * num_drafted


def test_prompts_longer_than_a_chunk(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("copyspec_eval.decoding.draft_model._CHUNK", 4)
    model = tiny_model("llama")
    actual = answers(model, DraftModel(model, DELTA), "none", plain, 4, False)
    assert tokens(actual) == tokens(answers(model, None, "none", plain, 4, False))
    assert all(a.num_accepted == a.num_drafted for one in actual for a in one.attempts)


def test_shared_random_numbers_accept_nearly_as_many_as_any_rule_can() -> None:
    auto: Any = AutoModelForCausalLM
    target = auto.from_pretrained(model_path(TINY)).eval()
    smaller = noisy(target, 0.2)
    chooser = sampling(TemperatureLogitsWarper(2.0))
    accepted, most, count = 0, 0.0, 0
    for row in [row.fields for row in read_jsonl(RECORDED)][::8]:
        token_ids = row["token_ids"]
        with torch.inference_mode():
            logits, draft_logits = (
                model(torch.tensor([token_ids])).logits[0].double() for model in (target, smaller)
            )
        p, q = ((scores / 2).softmax(-1) for scores in (logits, draft_logits))
        most += float(torch.minimum(p, q).sum())
        for place in range(len(token_ids)):
            draft = chooser.peek(token_ids[:place], draft_logits[place], 0)
            accepted += draft == chooser.choose(token_ids[:place], logits[place])
        count += len(token_ids)
    assert count > 1000
    assert most / count < 0.97
    assert accepted / count > most / count - 0.05


@pytest.mark.parametrize("vocabulary", [VOCABULARY - 8, VOCABULARY + 8])
@pytest.mark.parametrize("temperature", [None, 0.8])
def test_a_draft_model_of_another_vocabulary(vocabulary: int, temperature: float | None) -> None:
    model = tiny_model("llama")
    other = model_from(tiny_config("llama", vocab_size=vocabulary), std=None)

    def choose(seed: int) -> TokenChooser:
        bias = SequenceBiasLogitsProcessor([[[VOCABULARY - 1], -1.0], [[3], 0.5]])
        if temperature is None:
            return greedy(bias)
        return sampling(bias, TemperatureLogitsWarper(temperature), seed=seed)

    drafted = answers(model, DraftModel(other, delta=5), "none", choose, 2, exact=False)
    assert tokens(drafted) == tokens(answers(model, None, "none", choose, 2, exact=False))
    assert sum((one.counts.drafts or {})["model"].num_drafted for one in drafted) > 50
