"""Models served by their own attention and cache: the tokens of `generate`, whatever is drafted."""

import random
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch
from asking import asked, engine, generated, model_from
from byte_model import loaded
from doubles import AdversarialDrafter
from fuzzing.doubles import ScriptedDrafter
from lm_eval.models.huggingface import HFLM
from matrix.shapes import VOCABULARY, tiny_config, tiny_model
from timed_models import instances, rows
from tiny_models import prompts

from copyspec_eval.decoding.draft_model import DraftModel
from copyspec_eval.decoding.given import read_again
from copyspec_eval.decoding.model_cache import ModelCache, ModelCacheRunner
from copyspec_eval.decoding.trial import check_cache, choose_cache
from copyspec_eval.drafters.base import NoDrafter
from copyspec_eval.drafters.registry import DrafterFactory, drafter_factory
from copyspec_eval.errors import ModelError, OptionError
from copyspec_eval.harness.lm import CopySpecLM
from copyspec_eval.harness.recorder import Answers
from copyspec_eval.pairs.paired import PairedAnswer, PairedEngine
from copyspec_eval.session.settings import check_model_cache
from copyspec_eval.types import Draft, DraftOptions, Generation, Verdict

BUDGET, PROMPTS = 16, prompts()[:3]
SLOW = ("qwen3_next", "inkling_text")  # the latter has windows
ARCHITECTURES = (
    *("bloom", "falcon", "mpt", "lfm2, with convolutions", "deepseek_v4", "minimax", "rwkv"),
    *("olmo_hybrid", *(pytest.param(name, marks=pytest.mark.slow) for name in SLOW)),
)
RECURRENT = ("qwen3_next", "rwkv", "minimax")
STEP = r"through its own cache \(in a step off by .*model hf"


def model_of(architecture: str) -> Any:
    model: Any = tiny_model(tiny_config(architecture), torch.float64)
    if model._can_set_experts_implementation():
        model.set_experts_implementation("eager")  # the usual one knows no float64
    return model


def wanted(model: Any) -> list[tuple[int, ...]]:
    return [tuple(generated(model, prompt, BUDGET)) for prompt in PROMPTS]


def answers_of(model: Any, factory: DrafterFactory, **options: Any) -> list[Generation]:
    return engine(model, factory, cache="model", **options).generate(asked(PROMPTS, BUDGET))


def doubles(double: str, answers: list[tuple[int, ...]]) -> DrafterFactory:
    source = random.Random(0)
    return iter([ScriptedDrafter(double, ids, VOCABULARY, source) for ids in answers]).__next__


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_every_drafter_leaves_the_tokens_of_generate(architecture: str) -> None:
    model = model_of(architecture)
    assert choose_cache(model, exact=False, batch_size=1).kind == "model"
    tokens = wanted(model)
    factories = {"none": NoDrafter, "copyspec": drafter_factory(DraftOptions("copyspec", gamma=1))}
    factories |= {name: doubles(name, tokens) for name in ("right", "junk", "partly right")}
    for name, factory in factories.items():
        with mock.patch.object(model, "forward", wraps=model.forward) as forward:
            answers = answers_of(model, factory)
        assert [answer.token_ids for answer in answers] == tokens
        assert forward.call_count == sum(answer.counts.num_forwards or 0 for answer in answers)
        assert name != "right" or forward.call_count < len(tokens) * BUDGET / 2
    # Of the last ones some drafts were accepted, some rejected, and some accepted in part.
    attempts = [attempt for answer in answers for attempt in answer.attempts]
    assert any(0 < attempt.num_accepted < attempt.num_drafted for attempt in attempts)


def test_what_is_read_again_after_rejected_drafts_is_bounded() -> None:
    model = model_of("olmo_hybrid")
    tokens = dict(zip(PROMPTS, wanted(model), strict=True))
    with mock.patch.object(model, "forward", wraps=model.forward) as forward:
        answers_of(model, lambda: AdversarialDrafter(tokens, VOCABULARY), num_draft_tokens=1)
    widths = {call.kwargs["input_ids"].shape[1] for call in forward.call_args_list}
    # Eight that were left unread, the last token, a draft token.
    assert max(widths - {len(prompt) for prompt in PROMPTS}) == 8 + 1 + 1


def forget(self: ModelCacheRunner, _: Any, start: int, draft: Draft, verdict: Verdict) -> None:
    self._cache.num_read -= len(draft.token_ids) - verdict.num_accepted


def share(self: ModelCache, copied: Any = ModelCache.copied) -> ModelCache:
    other: ModelCache = copied(self)
    other._states = self._states
    return other


def bias(self: ModelCache, token_ids: Any, keep: int, read: Any = ModelCache.read) -> torch.Tensor:
    logits: torch.Tensor = read(self, token_ids, keep)
    return logits + 0.02 * logits.std() if keep > 1 else logits


@pytest.mark.parametrize(
    ("architecture", "owner", "name", "defect", "message"),
    [
        *((name, ModelCacheRunner, "accept", forget, STEP) for name in RECURRENT),
        ("olmo_hybrid", ModelCache, "copied", share, STEP),
        ("bloom", ModelCache, "read", bias, "in a step off by"),
    ],
)
def test_a_defect_is_refused(
    architecture: str, owner: Any, name: str, defect: Any, message: str, monkeypatch: Any
) -> None:
    model = model_of(architecture)
    check_cache(model, "model")
    monkeypatch.setattr(owner, name, defect)
    with pytest.raises(ModelError, match=message):
        check_cache(model, "model")


@pytest.mark.parametrize(
    ("architecture", "reason"),
    [
        ("jamba", "gives other logits through its own cache"),
        ("openai-gpt", "returns no cache"),
        ("doge, with experts", "gives other logits through the engine's cache"),
    ],
)
def test_what_stays_refused(architecture: str, reason: str) -> None:
    model = tiny_model(tiny_config(architecture))
    with pytest.raises(ModelError, match=rf"\A.*{reason}.*; use --model hf for it"):
        choose_cache(model, exact=False, batch_size=1)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("architecture", ["falcon", "lfm2, with convolutions", "qwen3_next"])
def test_half_precision_passes(architecture: str, dtype: torch.dtype) -> None:
    check_cache(tiny_model(tiny_config(architecture), dtype), "model")


@pytest.mark.parametrize("architecture", ["bloom", "olmo_hybrid"])
def test_all_that_an_engine_does_works_with_it(architecture: str) -> None:
    """Both arms of a pair, a draft model, reading an answer again."""
    model, drafting = model_of(architecture), tiny_model(tiny_config("llama"))
    tokens, answered = wanted(model), list[PairedAnswer]()
    pair = PairedEngine(model, [engine(model, DraftOptions("copyspec", gamma=1), cache="model")])
    pair.generate(asked(PROMPTS, BUDGET), lambda index, answers: answered.extend(answers))
    assert [answer.baseline.token_ids for answer in answered] == tokens
    assert all(answer.difference is None for answer in answered)

    drafted = answers_of(model, NoDrafter, draft_model=DraftModel(drafting, delta=3))
    assert [answer.token_ids for answer in drafted] == tokens
    assert all(answer.counts.drafts for answer in drafted)

    [request] = asked(PROMPTS[1:2], BUDGET)
    read = read_again(engine(model, cache="model"), request, tokens[1], num_logits=6)
    whole = ModelCache(model).read_without([*request.prompt_ids, *tokens[1]], keep=6).float()
    torch.testing.assert_close(read, whole, rtol=1e-4, atol=1e-4)


def test_what_it_cannot_do_is_refused_with_the_remedy() -> None:
    chain, tree = DraftOptions("suffix"), DraftOptions("suffix", tree=True)
    able: dict[str, Any] = {"arms": [chain], "exact": False, "batch_size": 1}
    for batch_size in (1, "1", "auto", "auto:4"):
        check_model_cache("it is so", **able | {"batch_size": batch_size})
    for given, remedy in (
        ({"arms": [chain, tree]}, "pass tree=False"),
        ({"batch_size": "8"}, "pass a batch size of 1"),
        ({"exact": True, "batch_size": 8}, "pass exact=False and a batch size of 1"),
    ):
        with pytest.raises(OptionError, match=f"^it is so: .*; {remedy}$"):
            check_model_cache("it is so", **able | given)


@pytest.fixture(scope="module", params=["bloom", "qwen3_next"])
def folder(request: pytest.FixtureRequest, byte_model: Path, tmp_path_factory: Any) -> Path:
    config, (model, tokenizer) = tiny_config(request.param), loaded(byte_model)
    names = "vocab_size", "bos_token_id", "eos_token_id", "pad_token_id"
    shape = {name: getattr(model.config, name) for name in names}
    shape |= {"hidden_size": 32, "initializer_range": 0.1, "max_position_embeddings": 2048}
    path: Path = tmp_path_factory.mktemp(request.param)
    model_from(type(config)(**config.to_dict() | shape), std=None).save_pretrained(path)
    tokenizer.save_pretrained(path)
    return path


def make(kind: Any, folder: Path, options: str = "") -> Any:
    arguments = f"pretrained={folder},dtype=float32,{options}"
    return kind.create_from_arg_string(arguments, {"device": "cpu", "batch_size": 1})


def test_the_harness_gives_answers_of_hf(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    stock, ours = make(HFLM, folder), make(CopySpecLM, folder, "gamma=2,exact=false,paired=true")
    requests = instances(contexts=["Once upon a time", "a b a b a b", "x"])
    answers = ours.generate_until(requests, disable_tqdm=True)
    assert "one request at a time, without the prefix cache" in caplog.text
    assert answers == stock.generate_until(requests, disable_tqdm=True)
    assert all(row.baseline and not row.baseline.difference for row in rows(answers))
    [first, *_] = Answers(ours, requests, disable_bar=True).asked
    spec = ours._spec(ours.prepare(), ours._arms[0], [first], 1)
    assert spec.drafting["cache"] == ours.prepare().cache != "copyspec"
    assert (spec.drafting["prefix_cache"], spec.drafting["kernels"]) == (0, "torch")
    with pytest.raises(OptionError, match=r"pass exact=False$"):
        make(CopySpecLM, folder)
