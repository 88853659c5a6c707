"""A draft model changes no token, and one with the target's weights is always accepted."""

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from steps import exact_mode_of
from tiny_models import VOCABULARY, prompts, tiny_config, tiny_model
from transformers import (
    AutoModelForCausalLM,
    LogitsProcessorList,
    SequenceBiasLogitsProcessor,
    TemperatureLogitsWarper,
    TopPLogitsWarper,
)

from copyspec_eval.decoding.choosing import TokenChooser
from copyspec_eval.decoding.draft_model import DraftModel
from copyspec_eval.decoding.engine import Engine
from copyspec_eval.decoding.sequence import Sequence
from copyspec_eval.decoding.stopping import StopRule
from copyspec_eval.drafters.registry import drafter_factory
from copyspec_eval.paths import TINY, model_path
from copyspec_eval.sources import read_jsonl
from copyspec_eval.types import DraftOptions, Generation

REPOSITORY = Path(__file__).resolve().parents[2]
RECORDED = REPOSITORY / "results" / "copyspec-tiny-suffix" / "turns.jsonl"
BUDGET, DELTA = 32, 3
SLOW = pytest.mark.slow
ARCHITECTURES = ["qwen2", *(pytest.param(n, marks=SLOW) for n in ("gemma2", "gpt2", "mixtral"))]
DRAFTERS = ["none", pytest.param("copyspec", marks=SLOW), "suffix"]


def greedy(index: int) -> TokenChooser:
    return TokenChooser(LogitsProcessorList(), do_sample=False)


def sampled(index: int) -> TokenChooser:
    warpers: Any = [TemperatureLogitsWarper(0.7), TopPLogitsWarper(0.9)]
    return TokenChooser(LogitsProcessorList(warpers), do_sample=True, seed=index)


def noisy(model: Any, noise: float) -> Any:
    """A copy of a model with noise on its weights; all noise makes it another model."""
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
    engine = Engine(
        model,
        drafter_factory(DraftOptions(drafter, gamma=2)),
        num_draft_tokens=10,
        exact=exact_mode_of(model, batch_size) if exact else None,
        batch_size=batch_size,
        draft_model=draft_model,
    )
    return engine.generate(
        [
            Sequence(prompt, StopRule(BUDGET + index), choose(index))
            for index, prompt in enumerate(prompts())
        ]
    )


@pytest.mark.parametrize("exact", [True, False], ids=["exact", "inexact"])
@pytest.mark.parametrize("batch_size", [1, 4])
@pytest.mark.parametrize("choose", [greedy, sampled])
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
    plain = answers(model, None, "none", choose, batch_size, exact)
    drafting = DraftModel(noisy(model, noise), DELTA)
    actual = answers(model, drafting, drafter, choose, batch_size, exact)
    assert [one.token_ids for one in actual] == [one.token_ids for one in plain]
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


def test_prompts_longer_than_a_chunk_and_a_smaller_vocabulary(monkeypatch: Any) -> None:
    monkeypatch.setattr("copyspec_eval.decoding.draft_model._CHUNK", 4)
    model = tiny_model("llama")
    plain = answers(model, None, "none", greedy, 4, False)
    same = DraftModel(model, DELTA)
    actual = answers(model, same, "none", greedy, 4, False)
    assert [one.token_ids for one in actual] == [one.token_ids for one in plain]
    assert all(a.num_accepted == a.num_drafted for one in actual for a in one.attempts)


def test_shared_random_numbers_accept_nearly_as_many_as_any_rule_can() -> None:
    """Any rule accepts sum(min(p, q)) of its drafts at the most: what min(1, p/q) does."""
    auto: Any = AutoModelForCausalLM
    target = auto.from_pretrained(model_path(TINY)).eval()
    smaller = noisy(target, 0.2)
    warpers: Any = LogitsProcessorList([TemperatureLogitsWarper(2.0)])
    chooser = TokenChooser(warpers, do_sample=True, seed=0)
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
    print(f"{count} drafts: accepted {accepted / count:.3f}, at the most {most / count:.3f}")
    assert count > 1000
    assert most / count < 0.97
    assert accepted / count > most / count - 0.05


@pytest.mark.parametrize("vocabulary", [VOCABULARY - 8, VOCABULARY + 8])
@pytest.mark.parametrize("temperature", [None, 0.8])
def test_a_draft_model_may_have_more_or_fewer_unused_tokens(
    vocabulary: int, temperature: float | None
) -> None:
    """As the sizes of one family have; processors hold a value per token of the target."""
    model = tiny_model("llama")
    torch.manual_seed(1)
    auto: Any = AutoModelForCausalLM
    other = auto.from_config(tiny_config("llama", vocab_size=vocabulary)).eval()

    def choose(seed: int) -> TokenChooser:
        bias = SequenceBiasLogitsProcessor([[[VOCABULARY - 1], -1.0], [[3], 0.5]])
        processors: list[Any] = [bias]
        if temperature is not None:
            processors.append(TemperatureLogitsWarper(temperature))
        return TokenChooser(LogitsProcessorList(processors), temperature is not None, seed)

    plain = answers(model, None, "none", choose, 2, exact=False)
    drafted = answers(model, DraftModel(other, delta=5), "none", choose, 2, exact=False)
    assert [one.token_ids for one in drafted] == [one.token_ids for one in plain]
    assert sum((one.counts.drafts or {})["model"].num_drafted for one in drafted) > 50
