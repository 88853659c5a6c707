"""A draft model changes no token, and one with the target's weights is always accepted."""

import copy
import functools
import random
from pathlib import Path

import pytest
import torch
from asking import asked, engine, greedy, model_from, sampling
from benchmarks.forced import ForcedModel
from steps import exact_mode_of
from tiny_models import prompts, quick, tiny_config, tiny_model
from transformers import AutoModelForCausalLM, TemperatureLogitsWarper, TopPLogitsWarper

from copyspec_eval.decoding.draft_model import DraftModel
from copyspec_eval.decoding.sequence import Sequence
from copyspec_eval.decoding.stopping import StopRule
from copyspec_eval.paths import TINY, model_path
from copyspec_eval.sources import read_jsonl
from copyspec_eval.types import DraftOptions

RECORDED = Path(__file__).parents[2] / "results" / "copyspec-tiny-suffix" / "turns.jsonl"
BUDGET, DELTA = 32, 3


def plain(index):
    return greedy()


def sampled(index):
    return sampling(TemperatureLogitsWarper(0.7), TopPLogitsWarper(0.9), seed=index)


def noisy(model, noise):
    other = copy.deepcopy(model)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for weight in other.parameters():
            shaken = torch.randn(weight.shape, generator=generator, dtype=weight.dtype)
            weight.add_(noise * shaken * weight.std())
    return other


def answers(model, draft_model, choose=plain, batch_size=4, exact=False, drafter="none"):
    mode = exact_mode_of(model, batch_size) if exact else None
    options = DraftOptions(drafter, gamma=2)
    made = engine(model, options, mode, batch_size=batch_size, draft_model=draft_model)
    asked = [Sequence(ids, StopRule(BUDGET + n), choose(n)) for n, ids in enumerate(prompts())]
    return made.generate(asked)


def tokens(answers):
    return [answer.token_ids for answer in answers]


@functools.cache
def tokens_without(model_type, choose, batch_size, exact):
    return tokens(answers(tiny_model(model_type), None, choose, batch_size, exact))


@pytest.mark.parametrize("exact", [True, False], ids=["exact", "inexact"])
@pytest.mark.parametrize("batch_size", [1, 4])
@pytest.mark.parametrize("choose", [plain, sampled])
@pytest.mark.parametrize("drafter", ["none", "suffix"])
@pytest.mark.parametrize("noise", [0.0, 0.05])
@pytest.mark.parametrize("model_type", quick("qwen2"))
def test_the_tokens_are_those_without_a_draft_model(
    model_type, noise, drafter, choose, batch_size, exact
):
    model = tiny_model(model_type)
    drafting, settings = DraftModel(noisy(model, noise), DELTA), (choose, batch_size, exact)
    actual = answers(model, drafting, *settings, drafter)
    assert tokens(actual) == tokens_without(model_type, *settings)
    attempts = [a for one in actual for a in one.attempts if a.source == "model"]
    assert attempts
    if noise == 0:
        assert all(attempt.num_accepted == attempt.num_drafted for attempt in attempts)
    if noise == 0 and drafter == "none":
        for index, one in enumerate(actual):
            assert one.counts.num_forwards == 1 + -(-(BUDGET + index - 1) // (DELTA + 1))


def test_prompts_longer_than_a_chunk(monkeypatch):
    monkeypatch.setattr("copyspec_eval.decoding.draft_model._CHUNK", 4)
    model = tiny_model("llama")
    actual = answers(model, DraftModel(model, DELTA))
    assert tokens(actual) == tokens(answers(model, None))
    assert all(a.num_accepted == a.num_drafted for one in actual for a in one.attempts)


@pytest.mark.parametrize("copying", [pytest.param("copyspec", marks=pytest.mark.slow), "suffix"])
def test_copying_and_a_draft_model_together_need_fewer_forwards_than_either(copying):
    """The paper's combination: copy where something matches, else draft."""
    source, size = random.Random(0), 2000
    passages = [source.sample(range(size), 60) for _ in range(4)]
    asked_of = {tuple(each): [*source.sample(range(size), 40), *each] for each in passages}

    def forced(share):
        """A model that gives the answers, but for a share of their tokens."""
        shape = {"vocab_size": size, "hidden_size": 8, "intermediate_size": 8}
        shape |= {"num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 1}
        model = model_from(tiny_config("qwen2", **shape))
        wrong = [
            [*prompt, *(source.randrange(size) if source.random() < share else t for t in answer)]
            for prompt, answer in asked_of.items()
        ]
        ForcedModel(model, wrong)
        return model

    target, draft_model = forced(0.0), DraftModel(forced(0.3), delta=5)

    def num_forwards(drafter, drafting):
        made = engine(target, DraftOptions(drafter), None, 15, draft_model=drafting)
        total = 0
        for prompt, wanted in asked_of.items():
            [answer] = made.generate(asked([prompt], len(wanted)))
            assert [*answer.token_ids] == wanted
            total += answer.counts.num_forwards or 0
        return total

    either = num_forwards(copying, None), num_forwards("none", draft_model)
    assert num_forwards(copying, draft_model) < min(either)


def test_shared_random_numbers_accept_nearly_as_many_as_any_rule_can():
    target = AutoModelForCausalLM.from_pretrained(model_path(TINY)).eval()
    models, chooser = (target, noisy(target, 0.2)), sampling(TemperatureLogitsWarper(2.0))
    accepted, most, count = 0, 0.0, 0
    for row in [*read_jsonl(RECORDED)][::8]:
        ids = row.fields["token_ids"]
        with torch.inference_mode():
            read, drafted = (model(torch.tensor([ids])).logits[0].double() for model in models)
        p, q = ((logits / 2).softmax(-1) for logits in (read, drafted))
        most += float(torch.minimum(p, q).sum())
        for place in range(len(ids)):
            draft = chooser.peek(ids[:place], drafted[place], 0)
            accepted += draft == chooser.choose(ids[:place], read[place])
        count += len(ids)
    assert count > 1000
    assert accepted / count + 0.05 > most / count
    assert most / count < 0.97
