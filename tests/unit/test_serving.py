"""Which models are served, what cache and attention do, and what the probe catches."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tiny_models import prompts, tiny_config, tiny_model
from transformers import AutoModelForCausalLM, BloomConfig, Llama4TextConfig, LogitsProcessorList

from copyspec_eval.decoding import attention, experts, serving
from copyspec_eval.decoding.cache import RowCache
from copyspec_eval.decoding.choosing import TokenChooser
from copyspec_eval.decoding.engine import PREFILL_CHUNK, Engine
from copyspec_eval.decoding.sequence import Sequence
from copyspec_eval.decoding.stopping import StopRule
from copyspec_eval.drafters.registry import drafter_factory
from copyspec_eval.errors import ModelError, RequestError
from copyspec_eval.types import DraftOptions


def engine(model: Any, exact: bool = True) -> Engine:
    factory = drafter_factory(DraftOptions("copyspec", gamma=1))
    return Engine(model, factory, num_draft_tokens=10, exact=exact)


def sequence(prompt: tuple[int, ...], budget: int) -> Sequence:
    return Sequence(prompt, StopRule(budget), TokenChooser(LogitsProcessorList(), False))


def test_rejected_positions_are_simply_written_over() -> None:
    cache = RowCache(num_rows=2, capacity=8)
    states = torch.arange(2 * 3, dtype=torch.float32).reshape(2, 1, 3, 1)
    cache.place(0, torch.tensor([[0, 1, 2], [4, 5, 6]]), extent=7)
    keys, _ = cache.update(states, states + 10, 0)
    assert keys[:, 0, :, 0].tolist() == [[0, 1, 2, 0, 0, 0, 0], [0, 0, 0, 0, 3, 4, 5]]
    cache.place(1, torch.tensor([[5]]), extent=6)
    keys, values = cache.update(torch.full((1, 1, 1, 1), 9.0), torch.full((1, 1, 1, 1), 8.0), 0)
    assert keys[0, 0, :, 0].tolist() == [0, 0, 0, 0, 3, 9]
    assert values[0, 0, 5, 0] == 8
    cache.copy_row(source=1, target=0)
    cache.place(0, torch.tensor([[0]]), extent=6)
    keys, _ = cache.update(torch.full((1, 1, 1, 1), 7.0), torch.zeros(1, 1, 1, 1), 0)
    assert keys[0, 0, :, 0].tolist() == [7, 0, 0, 0, 3, 9]
    assert cache.get_mask_sizes(1, 0) == (6, 0)


@pytest.mark.parametrize("softcap", [None, 5.0])
@pytest.mark.parametrize("window", [None, 4])
def test_attention_by_definition(window: int | None, softcap: float | None) -> None:
    torch.manual_seed(0)
    query, key, value = (torch.randn(2, heads, n, 8) for heads, n in ((4, 3), (2, 9), (2, 9)))
    start = torch.tensor([2, 5])
    own = start[:, None] + torch.arange(3)
    mask = (torch.arange(9) <= own[:, :, None])[:, None]
    output, _ = attention.attend(
        torch.nn.Identity(), query, key, value, mask, sliding_window=window, softcap=softcap
    )
    for row in range(2):
        for head in range(4):
            for place in range(3):
                position = int(own[row, place])
                first = 0 if window is None else max(0, position - window + 1)
                seen = slice(first, position + 1)
                scores = key[row, head // 2, seen] @ query[row, head, place] * 8**-0.5
                if softcap is not None:
                    scores = softcap * torch.tanh(scores / softcap)
                wanted = torch.softmax(scores, -1) @ value[row, head // 2, seen]
                torch.testing.assert_close(output[row, place, head], wanted)


@pytest.mark.parametrize("exact", [True, False])
def test_a_prompt_longer_than_a_chunk(exact: bool) -> None:
    """Prefill in pieces, with a sliding window, gives what `generate` gives."""
    config = tiny_config("gemma2")
    config.max_position_embeddings = 4 * PREFILL_CHUNK
    torch.manual_seed(0)
    auto: Any = AutoModelForCausalLM
    model = auto.from_config(config).eval()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    prompt = (prompts()[1] * 40)[: 2 * PREFILL_CHUNK + 7]
    ids = torch.tensor([prompt])
    wanted = model.generate(
        ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=12
    )
    [answer] = engine(model, exact).generate([sequence(prompt, 12)])
    assert list(answer.token_ids) == wanted[0, len(prompt) :].tolist()


def test_answers_may_end_at_the_last_position_of_the_model() -> None:
    """Padding then stands where a learned position embedding has no row."""
    model = tiny_model("gpt2")
    prompt = (prompts()[1] * 10)[:240]
    ids = torch.tensor([prompt])
    wanted = model.generate(
        ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=16
    )
    [answer] = engine(model).generate([sequence(prompt, 16)])
    assert list(answer.token_ids) == wanted[0, 240:].tolist()


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        (BloomConfig(), "does not use transformers' attention interface"),
        (Llama4TextConfig(num_hidden_layers=4), "layers of type chunked_attention"),
    ],
)
def test_refused_architectures(config: Any, reason: str) -> None:
    with pytest.raises(ModelError, match=f"{reason}.*use --model hf"):
        serving.check_config(config)


def test_the_probe_catches_an_attention_that_the_engine_does_not_know(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model = tiny_model("gemma2")
    serving.probe(model, exact=True)
    explicit: Any = attention._explicit
    # As if soft-capping were unknown.

    def uncapped(*given: Any) -> Any:
        return explicit(*given[:5], None, given[6])

    monkeypatch.setattr(attention, "_explicit", uncapped)
    model.config.attn_logit_softcapping, before = 0.1, model.config.attn_logit_softcapping
    for layer in model.model.layers:
        layer.self_attn.attn_logit_softcapping = 0.1
    try:
        with pytest.raises(ModelError, match="gives other logits through the engine's cache"):
            serving.probe(model, exact=True)
    finally:
        model.config.attn_logit_softcapping = before
        for layer in model.model.layers:
            layer.self_attn.attn_logit_softcapping = before


def test_the_probe_catches_experts_that_exact_mode_does_not_know(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model = tiny_model("mixtral")
    expert: Any = experts._expert
    # As if each expert's output were normalised and that were unknown.
    monkeypatch.setattr(experts, "_expert", lambda *given: expert(*given) * 3)
    serving.probe(model, exact=False)
    with pytest.raises(ModelError, match="gives other logits through the engine's cache"):
        serving.probe(model, exact=True)


def test_experts_that_cannot_be_switched_are_refused_in_exact_mode(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model = tiny_model("mixtral")
    serving.check_exact(model)
    monkeypatch.setattr(
        type(model), "_can_set_experts_implementation", classmethod(lambda _: False)
    )
    with pytest.raises(ModelError, match=r"routes tokens to experts.*exact=false"):
        serving.check_exact(model)


def test_a_rotary_embedding_that_changes_with_length_is_kept_below_its_limit() -> None:
    config = tiny_config("phi3", original_max_position_embeddings=64)
    config.rope_parameters = {
        "rope_type": "longrope",
        "rope_theta": 10000.0,
        "original_max_position_embeddings": 64,
        "short_factor": [1.0] * 4,
        "long_factor": [2.0] * 4,
    }
    auto: Any = AutoModelForCausalLM
    model = auto.from_config(config).eval()
    [answer] = engine(model).generate([sequence(prompts()[0], 64 - 5 - 15)])
    assert len(answer.token_ids) == 44
    with pytest.raises(RequestError, match=r"up to 65 positions, but past 64 .*longrope"):
        engine(model).generate([sequence(prompts()[0], 64 - 5 - 14)])
