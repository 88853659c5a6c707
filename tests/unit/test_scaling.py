"""Memory and time of large models: the formula against transformers' models, and its document."""

import json
import random
from dataclasses import replace
from typing import Any

import pytest
import torch
from sizing import document
from sizing.formula import Step, devices_needed, experts_read, operations, read_bytes, step_seconds
from sizing.shapes import H100, LLAMA_8B, LLAMA_70B, QWEN_235B, Shape, shape_of
from tiny_models import tiny_config
from torch.utils.flop_counter import FlopCounterMode
from transformers import AutoModelForCausalLM, LlamaConfig, Qwen3MoeConfig

LLAMA: dict[str, Any] = {"vocab_size": 128256, "num_key_value_heads": 8}
LARGE: dict[str, Any] = {"hidden_size": 8192, "intermediate_size": 28672, "num_hidden_layers": 80}
MIXTURE: dict[str, Any] = {"hidden_size": 4096, "moe_intermediate_size": 1536, "head_dim": 128}
MIXTURE |= {"num_hidden_layers": 94, "num_attention_heads": 64, "num_key_value_heads": 4}
MIXTURE |= {"vocab_size": 151936, "num_experts": 128, "num_experts_per_tok": 8}
TIED = tiny_config("llama", tie_word_embeddings=True)
MODELS = [
    (LLAMA_8B, 8.03e9, LlamaConfig(**LLAMA, hidden_size=4096, intermediate_size=14336)),
    (LLAMA_70B, 70.6e9, LlamaConfig(**LLAMA, **LARGE, num_attention_heads=64)),
    (QWEN_235B, 235e9, Qwen3MoeConfig(**MIXTURE)),
    (shape_of(TIED), None, TIED),
]


def on_paper(config: Any) -> Any:
    auto: Any = AutoModelForCausalLM
    with torch.device("meta"):
        return auto.from_config(config)


@pytest.mark.parametrize(("shape", "size", "config"), MODELS, ids=["8B", "70B", "235B", "tied"])
def test_weights_are_those_of_the_model(shape: Shape, size: float | None, config: Any) -> None:
    model = on_paper(config)
    assert shape_of(config) == shape
    assert shape.num_weights == sum(weight.numel() for weight in model.parameters())
    assert size is None or shape.num_weights == pytest.approx(size, rel=1e-3)
    every = read_bytes(shape, Step(weight_bytes=1, value_bytes=0, every_expert=True))
    embeddings = 0 if shape.is_tied else model.get_input_embeddings().weight.numel()
    assert every == shape.num_weights - embeddings


def test_operations_are_those_that_torch_counts() -> None:
    config = tiny_config("llama", hidden_size=256, intermediate_size=512, head_dim=64)
    config._attn_implementation = "eager"
    with FlopCounterMode(display=False) as counter:
        on_paper(config)(input_ids=torch.zeros(2, 256, dtype=torch.long, device="meta"))
    counted = operations(shape_of(config), Step(rows=2, width=256))
    assert counted == pytest.approx(counter.get_total_flops(), rel=0.01)


def test_experts_that_are_read_are_those_of_random_routing() -> None:
    shape, source = replace(QWEN_235B, num_experts=16, experts_per_token=2), random.Random(0)
    drawn = [len({e for _ in range(32) for e in source.sample(range(16), 2)}) for _ in range(2000)]
    step = Step(rows=4, width=8)
    assert experts_read(shape, step) == pytest.approx(sum(drawn) / len(drawn), rel=0.02)
    assert experts_read(LLAMA_8B, step) == 1
    read = read_bytes(QWEN_235B, Step(weight_bytes=1, value_bytes=0))
    assert read + QWEN_235B.hidden == pytest.approx(22e9, rel=0.02), "22 billion weights a token"


def test_a_step_is_bound_by_reading_and_then_by_computing_and_needs_devices() -> None:
    plain = step_seconds(LLAMA_8B, H100, Step())
    assert plain == pytest.approx(2 * (LLAMA_8B.num_weights - 128256 * 4096) / 3.35e12, rel=1e-3)
    wide = Step(width=1024)
    assert step_seconds(LLAMA_8B, H100, wide) == operations(LLAMA_8B, wide) / H100.flops > plain
    assert step_seconds(LLAMA_8B, H100, Step(), at_once=8) == plain / 8
    mixture = [step_seconds(QWEN_235B, H100, Step(width=width)) for width in (1, 16)]
    assert mixture[1] > 5 * mixture[0], "drafts of a mixture of experts are not free"
    steps = Step(), Step(weight_bytes=0.5), Step(rows=32, context=8192)
    assert [devices_needed(LLAMA_70B, H100, step) for step in steps] == [2, 1, 3]


def test_the_document_has_what_the_formula_computes_and_is_near_what_was_measured() -> None:
    measured = json.loads(document.MEASURED.read_text())
    assert document.PATH.read_text() == document.render(measured), "run scripts/scaling"
    assert {row["dtype"] for row in measured["steps"]} == {"bfloat16", "float32"}
    for row in measured["steps"]:
        assert 0.7 < row["seconds"] / document.predicted_seconds(measured, row) < 3, row
