"""Models served by their own attention and cache: the tokens of `generate`, whatever is drafted."""

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from fuzzing.doubles import ScriptedDrafter
from lm_eval.api.instance import Instance
from lm_eval.models.huggingface import HFLM
from matrix.shapes import VOCABULARY, tiny_config, tiny_model
from tiny_models import prompts as ragged_prompts
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    BloomConfig,
    LogitsProcessorList,
    Qwen3NextConfig,
)
from transformers.cache_utils import DynamicLayer

from copyspec_eval.decoding import model_cache
from copyspec_eval.decoding.choosing import TokenChooser
from copyspec_eval.decoding.draft_model import DraftModel
from copyspec_eval.decoding.engine import Engine
from copyspec_eval.decoding.given import read_again
from copyspec_eval.decoding.model_cache import ModelCache, ModelCacheRunner
from copyspec_eval.decoding.paired import Baseline, PairedEngine
from copyspec_eval.decoding.sequence import Sequence
from copyspec_eval.decoding.step_costs import step_costs
from copyspec_eval.decoding.stopping import StopRule
from copyspec_eval.decoding.trial import check_cache, choose_cache
from copyspec_eval.drafters.base import Drafter, NoDrafter
from copyspec_eval.drafters.registry import DrafterFactory, drafter_factory
from copyspec_eval.errors import ModelError, OptionError
from copyspec_eval.harness.lm import CopySpecLM
from copyspec_eval.harness.recorder import Answers
from copyspec_eval.records import record_of
from copyspec_eval.session.settings import check_model_cache
from copyspec_eval.types import Draft, DraftOptions, Generation, Verdict

BUDGET = 16
ARCHITECTURES = (
    "bloom",
    "falcon",
    "mpt",
    "lfm2, with convolutions",
    "inkling_text",  # windows
    "deepseek_v4",
    "minimax",
    "rwkv",
    "olmo_hybrid",
    "qwen3_next",
)

SLOW = {"qwen3_next", "inkling_text"}
QUICK_AND_SLOW = [
    pytest.param(name, marks=pytest.mark.slow if name in SLOW else ()) for name in ARCHITECTURES
]


def model_of(architecture: str) -> Any:
    model: Any = tiny_model(tiny_config(architecture), torch.float64)
    if model._can_set_experts_implementation():
        model.set_experts_implementation("eager")  # the usual one knows no float64
    return model


def prompts() -> list[tuple[int, ...]]:
    return ragged_prompts()[:3]


def sequence(prompt: tuple[int, ...]) -> Sequence:
    return Sequence(prompt, StopRule(BUDGET), TokenChooser(LogitsProcessorList(), False))


def wanted(model: Any) -> list[tuple[int, ...]]:
    answers = []
    for prompt in prompts():
        ids = torch.tensor([prompt])
        output = model.generate(
            ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=BUDGET
        )
        answers.append(tuple(output[0, len(prompt) :].tolist()))
    return answers


def answers_of(
    model: Any, factory: DrafterFactory, draft_model: DraftModel | None = None
) -> list[Generation]:
    engine = Engine(
        model, factory, num_draft_tokens=10, exact=None, cache="model", draft_model=draft_model
    )
    return engine.generate([sequence(prompt) for prompt in prompts()])


def doubles(double: str, answers: list[tuple[int, ...]]) -> DrafterFactory:
    made: Iterator[Drafter] = (
        ScriptedDrafter(double, answer, VOCABULARY, random.Random(index))
        for index, answer in enumerate(answers)
    )
    return made.__next__


@pytest.mark.parametrize("architecture", QUICK_AND_SLOW)
def test_every_drafter_leaves_the_tokens_of_generate(architecture: str) -> None:
    model = model_of(architecture)
    assert choose_cache(model, exact=False, batch_size=1).kind == "model"
    tokens = wanted(model)
    factories = [NoDrafter, drafter_factory(DraftOptions("copyspec", gamma=1))]
    factories += [doubles(name, tokens) for name in ("right", "junk", "partly right")]
    for factory in factories:
        answers = answers_of(model, factory)
        assert [answer.token_ids for answer in answers] == tokens
    # Of the last ones some drafts were accepted, some rejected, and some accepted in part.
    attempts = [attempt for answer in answers for attempt in answer.attempts]
    assert any(0 < attempt.num_accepted < attempt.num_drafted for attempt in attempts)


@pytest.mark.parametrize("architecture", ["bloom", "olmo_hybrid"])
@pytest.mark.parametrize("double", ["right", "junk", "partly right"])
def test_every_forward_is_counted(architecture: str, double: str) -> None:
    model = model_of(architecture)
    tokens, forwards = wanted(model), 0

    def count(*_: Any) -> None:
        nonlocal forwards
        forwards += 1

    hook = model.register_forward_hook(count)
    try:
        answers = answers_of(model, doubles(double, tokens))
    finally:
        hook.remove()
    assert forwards == sum(answer.counts.num_forwards or 0 for answer in answers)
    assert double != "right" or forwards < len(tokens) * BUDGET / 2


def test_what_is_read_again_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    model, unread = model_of("olmo_hybrid"), []
    step: Any = ModelCacheRunner.step

    def noted(self: ModelCacheRunner, rows: Any, drafts: Any) -> Any:
        if self._cache.num_read:  # behind the prompt
            unread.append(rows[0].length - self._cache.num_read)
        return step(self, rows, drafts)

    monkeypatch.setattr(ModelCacheRunner, "step", noted)
    answers_of(model, doubles("junk", [()] * len(prompts())))
    # The last token is new, and before it come those that rejected drafts left unread.
    assert max(unread) == model_cache._MOST_UNREAD + 2


@torch.inference_mode()
def test_a_copy_shares_keys_and_values_alone() -> None:
    cache = ModelCache(model_of("qwen3_next"))
    cache.read(range(1, 9), keep=1)
    [states] = cache._states.values()
    [copied] = cache.copied()._states.values()
    for layer, other in zip(states.layers, copied.layers, strict=True):
        if isinstance(layer, DynamicLayer):
            assert layer.keys is other.keys
            assert layer.values is other.values
        else:
            assert torch.equal(layer.recurrent_states[0], other.recurrent_states[0])
            layer.recurrent_states[0].zero_()
            layer.conv_states[0].zero_()
            assert other.recurrent_states[0].any()
            assert other.conv_states[0].any()


@pytest.mark.parametrize("architecture", ["qwen3_next", "rwkv", "minimax"])
def test_a_state_that_is_not_restored_is_refused(
    architecture: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def forget(self: ModelCacheRunner, _: Any, start: int, draft: Draft, verdict: Verdict) -> None:
        self._cache.num_read -= len(draft.token_ids) - verdict.num_accepted

    monkeypatch.setattr(ModelCacheRunner, "accept", forget)
    with pytest.raises(ModelError, match=r"through its own cache \(in a step off by .*model hf"):
        check_cache(model_of(architecture), "model")


def test_a_copy_that_shares_recurrent_states_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    copied: Any = ModelCache.copied

    def shared(self: ModelCache) -> ModelCache:
        other: ModelCache = copied(self)
        other._states = self._states
        return other

    monkeypatch.setattr(ModelCache, "copied", shared)
    with pytest.raises(ModelError):
        check_cache(model_of("olmo_hybrid"), "model")


@pytest.mark.parametrize(
    ("architecture", "reason"),
    [
        ("mamba", "gives other logits through its own cache"),
        ("falcon_mamba", "gives other logits through its own cache"),
        ("jamba", "gives other logits through its own cache"),
        ("zamba", "gives other logits through its own cache"),
        ("recurrent_gemma", "returns no cache"),
        ("openai-gpt", "returns no cache"),
        ("cpmant", "gives other logits through its own cache"),
        ("doge, with experts", "gives other logits through the engine's cache"),
    ],
)
def test_what_stays_refused(architecture: str, reason: str) -> None:
    model = tiny_model(tiny_config(architecture))
    with pytest.raises(ModelError, match=f"{reason}.*; use --model hf for it") as raised:
        choose_cache(model, exact=False, batch_size=1)
    assert "\n" not in str(raised.value)


def test_a_bias_of_wider_steps_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    model, read = tiny_model(tiny_config("bloom")), ModelCache.read
    bias = 0.02 * float(ModelCache(model).read_without(range(1, 30), keep=29).std())

    def biased(self: ModelCache, token_ids: Any, keep: int) -> torch.Tensor:
        logits = read(self, token_ids, keep)
        return logits + bias if keep > 1 else logits

    check_cache(model, "model")
    monkeypatch.setattr(ModelCache, "read", biased)
    with pytest.raises(ModelError, match="in a step off by"):
        check_cache(model, "model")


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("architecture", ["falcon", "lfm2, with convolutions", "qwen3_next"])
def test_half_precision_passes(architecture: str, dtype: torch.dtype) -> None:
    check_cache(tiny_model(tiny_config(architecture), dtype), "model")


def test_a_draft_model_drafts_for_it() -> None:
    target, drafting = model_of("bloom"), tiny_model(tiny_config("llama"))
    for model in (target, drafting):
        assert model.config.vocab_size == VOCABULARY
    answers = answers_of(target, NoDrafter, DraftModel(drafting, delta=3))
    assert [answer.token_ids for answer in answers] == wanted(target)
    assert all(answer.counts.drafts for answer in answers)


@pytest.mark.parametrize("architecture", ["falcon", "olmo_hybrid"])
def test_both_arms_of_a_pair_have_it(architecture: str) -> None:
    model = model_of(architecture)
    factory = drafter_factory(DraftOptions("copyspec", gamma=1))
    engine = Engine(model, factory, num_draft_tokens=10, exact=None, cache="model")
    baselines: list[Baseline] = []
    PairedEngine(model, [engine]).generate(
        [sequence(prompt) for prompt in prompts()],
        lambda index, answers: baselines.extend(answer.baseline for answer in answers),
    )
    assert [baseline.generation.token_ids for baseline in baselines] == wanted(model)
    assert all(baseline.difference is None for baseline in baselines)


@pytest.mark.parametrize("architecture", ["bloom", "olmo_hybrid"])
def test_an_answer_is_read_again_as_it_was_given(architecture: str) -> None:
    model = model_of(architecture)
    engine = Engine(model, NoDrafter, num_draft_tokens=4, exact=None, cache="model")
    prompt, answer = prompts()[1], wanted(model)[1]
    read = read_again(engine, sequence(prompt), answer[:17], num_logits=6)
    whole = ModelCache(model).read_without([*prompt, *answer[:17]], keep=6).float()
    torch.testing.assert_close(read, whole, rtol=1e-4, atol=1e-4)


def test_costs_are_measured_up_to_the_longest_draft() -> None:
    for architecture in ("bloom", "olmo_hybrid"):
        costs = step_costs(model_of(architecture), 1, 20, None, "model")
        assert list(costs) == [0, 1, 3, 7, 15, 20]
        assert min(costs.values()) > 0


def test_what_it_cannot_do_is_refused_with_the_remedy() -> None:
    chain, tree = DraftOptions("suffix"), DraftOptions("suffix", tree=True)
    able: dict[str, Any] = {"arms": [chain], "exact": False, "batch_size": 1}
    for batch_size in (1, "1", "auto", "auto:4"):
        check_model_cache("it is so", **able | {"batch_size": batch_size})
    for given, remedy in (
        ({"exact": True}, "pass exact=False"),
        ({"arms": [chain, tree]}, "pass tree=False"),
        ({"batch_size": "8"}, "pass a batch size of 1"),
        ({"exact": True, "batch_size": 8}, "pass exact=False and a batch size of 1"),
    ):
        with pytest.raises(OptionError, match=f"^it is so: .*; {remedy}$"):
            check_model_cache("it is so", **able | given)


@pytest.fixture(scope="module", params=["bloom", "qwen3_next"])
def folder(request: pytest.FixtureRequest, byte_model: Path, tmp_path_factory: Any) -> Path:
    """A random model on disk whose tokens are bytes."""
    tokenizer: Any = AutoTokenizer.from_pretrained(byte_model)
    shape: dict[str, Any] = {
        "vocab_size": len(tokenizer),
        "hidden_size": 32,
        "initializer_range": 0.1,
        "bos_token_id": None,
        "eos_token_id": tokenizer.eos_token_id,
        "pad_token_id": tokenizer.pad_token_id,
    }
    config: Any = BloomConfig(**shape, n_layer=2, n_head=4)
    if request.param == "qwen3_next":
        config = tiny_config("qwen3_next")
        config = Qwen3NextConfig(**config.to_dict() | shape | {"max_position_embeddings": 2048})
    torch.manual_seed(0)
    auto: Any = AutoModelForCausalLM
    model = auto.from_config(config)
    path: Path = tmp_path_factory.mktemp(request.param)
    model.save_pretrained(path)
    tokenizer.save_pretrained(path)
    return path


def make(kind: Any, folder: Path, options: str = "", batch_size: int = 1) -> Any:
    arguments = f"pretrained={folder},dtype=float32,{options}"
    return kind.create_from_arg_string(arguments, {"device": "cpu", "batch_size": batch_size})


def instances() -> list[Instance]:
    texts, settings = ["Once upon a time", "a b a b a b", "x"], {"until": [], "max_gen_toks": 24}
    return [
        Instance("generate_until", {}, (text, settings), 0, ("task", doc, 1))
        for doc, text in enumerate(texts)
    ]


def test_a_harness_model_gives_the_answers_of_hf(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    stock, ours = make(HFLM, folder), make(CopySpecLM, folder, "gamma=2,exact=false,paired=true")
    answers = ours.generate_until(instances(), disable_tqdm=True)
    assert "one request at a time, and nothing of earlier prompts is reused" in caplog.text
    assert answers == stock.generate_until(instances(), disable_tqdm=True)
    records = [record_of(answer) for answer in answers]
    assert all(record and record.baseline and not record.baseline.difference for record in records)
    [asked, *_] = Answers(ours, instances(), disable_bar=True).asked
    spec = ours._spec(ours.prepare(), ours._arms[0], [asked], 1)
    assert spec.drafting["cache"] == ours.prepare().cache != "copyspec"
    assert (spec.drafting["prefix_cache"], spec.drafting["kernels"]) == (0, "torch")
    with pytest.raises(OptionError, match=r"pass exact=False$"):
        make(CopySpecLM, folder)
    with pytest.raises(OptionError, match=r"pass a batch size of 1$"):
        make(CopySpecLM, folder, "exact=false", batch_size=8)
