"""Compiled layers: the model's own results, in steps of every form."""

from __future__ import annotations

import copy
from collections.abc import Callable
from collections.abc import Sequence as Tokens
from typing import Any

import pytest
import torch
from doubles import OracleDrafter
from steps import TEXT
from tiny_models import ARCHITECTURES, VOCABULARY, tiny_model
from transformers import LogitsProcessorList
from unlike_rows import CONTEXTS, EXTENT, LENGTHS, filled, parts, tokens

from copyspec_eval.decoding import compiling, kernels
from copyspec_eval.decoding.cache import write
from copyspec_eval.decoding.choosing import TokenChooser
from copyspec_eval.decoding.engine import Engine
from copyspec_eval.decoding.exactness import check_exact
from copyspec_eval.decoding.forward import forward, forward_packed
from copyspec_eval.decoding.sequence import Sequence
from copyspec_eval.decoding.serving import served
from copyspec_eval.decoding.stopping import StopRule
from copyspec_eval.drafters.base import NoDrafter
from copyspec_eval.errors import ModelError, OptionError
from copyspec_eval.harness.options import check_compile
from copyspec_eval.types import ExactMode

pytestmark = pytest.mark.skipif(
    not kernels.has_compiler(), reason="NOT TESTED without a C++ compiler: apt-get install g++"
)


class RecordingChooser(TokenChooser):
    """Greedy; keeps the logits of every token."""

    is_argmax = False

    def __init__(self) -> None:
        super().__init__(LogitsProcessorList(), do_sample=False)
        self.logits: list[torch.Tensor] = []

    def choose(self, prefix_ids: Tokens[int], logits: torch.Tensor) -> int:
        self.logits.append(logits.clone())
        return super().choose(prefix_ids, logits)


def fresh_model(model_type: str, dtype: torch.dtype = torch.float32) -> Any:
    """Nobody else's, to be compiled or changed."""
    return copy.deepcopy(tiny_model(model_type, dtype))


@torch.inference_mode()
def read(model: Any) -> list[torch.Tensor]:
    """Logits of steps of one row: one token wide, and wider."""
    with served(model, exact=True):
        cache = filled(model)
        return [
            forward(model, cache, 0, torch.tensor([tokens(0, 20, width)]), 20, EXTENT)
            for width in (1, 2, 5, 8, 11)
        ]


@torch.inference_mode()
def read_rows(model: Any) -> list[torch.Tensor]:
    """Logits of steps of several rows, of the same width and of unlike ones."""
    starts = torch.tensor(CONTEXTS)[:, None]
    logits = []
    with served(model, exact=True):
        cache = filled(model)
        for width in (1, 3, 8):
            ids = [tokens(row, start, width) for row, start in enumerate(CONTEXTS)]
            logits.append(forward(model, cache, 0, torch.tensor(ids), starts, EXTENT))
        for widths in ((2, 9), (1, 10), (12,)):
            packed = forward_packed(model, cache, parts(), widths, sum(LENGTHS) + 3, EXTENT)
            logits.append(packed[: sum(LENGTHS)])
        # Fewer rows, and other numbers of tokens, in the same graphs.
        for num_rows, more in ((2, 1), (3, 5)):
            some = parts()[:num_rows]
            count = sum(LENGTHS[:num_rows])
            packed = forward_packed(model, cache, some, (12,), count + more, EXTENT)
            logits.append(packed[:count])
    return logits


def check(model: Any, steps: Callable[[Any], list[torch.Tensor]]) -> list[torch.Tensor]:
    """Compile, and compare with what it was before; the compiled logits."""
    wanted = steps(model)
    compiling.compile_layers(model)
    logits = steps(model)
    for ours, right in zip(logits, wanted, strict=True):
        assert torch.allclose(ours, right, rtol=1e-4, atol=1e-4)
    return logits


def graphs_of(model: Any) -> list[Any]:
    [first, *_] = compiling._layers[model]
    return [graph for graphs in first.graphs.values() for graph in graphs]


@pytest.mark.parametrize(
    "model_type",
    ["qwen2", *(pytest.param(n, marks=pytest.mark.slow) for n in ARCHITECTURES if n != "qwen2")],
)
def test_a_graph_computes_what_the_layer_does(model_type: str) -> None:
    """One serves all widths but a single token's, and every layer of its kind."""
    model = fresh_model(model_type)
    logits = check(model, read)
    kinds = len(compiling._layers[model][0].kinds)
    made = graphs_of(model)
    assert len(made) == 2 * kinds
    # Weights that were trained meanwhile are taken up.
    with torch.no_grad():
        for weight in model.parameters():
            weight.mul_(1.5)
    changed = read(model)
    assert graphs_of(model) == made
    assert not torch.allclose(changed[0], logits[0], rtol=1e-2)
    del compiling._layers[model]
    for ours, right in zip(changed, read(model), strict=True):
        assert torch.allclose(ours, right, rtol=1e-4, atol=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("model_type", ARCHITECTURES)
def test_a_graph_computes_what_the_layer_does_in_a_batch(model_type: str) -> None:
    model = fresh_model(model_type)
    check(model, read_rows)
    kinds = len(compiling._layers[model][0].kinds)
    assert len(graphs_of(model)) <= 6 * kinds


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("batch_size", [1, 3])
def test_drafts_change_no_bit_of_compiled_layers(batch_size: int, dtype: torch.dtype) -> None:
    model = fresh_model("qwen2", dtype)
    compiling.compile_layers(model)
    mode = ExactMode()
    if check_exact(model, TEXT, mode, 16, batch_size):
        mode = ExactMode(16)
        assert check_exact(model, TEXT, mode, 15, batch_size) is None
    asked = [tuple(tokens(row, 0, 9 + 30 * row)) for row in range(4)]

    def answers(make_drafter: Any) -> list[tuple[tuple[int, ...], torch.Tensor]]:
        engine = Engine(model, make_drafter, num_draft_tokens=10, exact=mode, batch_size=batch_size)
        choosers = [RecordingChooser() for _ in asked]
        generations = engine.generate(
            [Sequence(ids, StopRule(30), own) for ids, own in zip(asked, choosers, strict=True)]
        )
        return [
            (generation.token_ids, torch.stack(own.logits))
            for generation, own in zip(generations, choosers, strict=True)
        ]

    plain = answers(NoDrafter)
    right = {ids: answer for ids, (answer, _) in zip(asked, plain, strict=True)}
    drafted = answers(lambda: OracleDrafter(right, VOCABULARY))
    for (ids, logits), (own_ids, own_logits) in zip(plain, drafted, strict=True):
        assert ids == own_ids
        assert torch.equal(logits, own_logits)


def test_a_graph_with_another_result_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    model = fresh_model("qwen2")
    compiling.compile_layers(model)

    def wrong(whole: torch.Tensor, states: torch.Tensor, *args: Any) -> None:
        write(whole, states * 1.1, *args)

    monkeypatch.setattr(compiling, "write", wrong)
    with pytest.raises(ModelError, match="gives Qwen2DecoderLayer another result; leave it out"):
        read(model)


def test_outside_of_the_engine_layers_are_as_they_were() -> None:
    model = fresh_model("qwen2")
    compiling.compile_layers(model)
    with served(model, exact=True):
        assert all("forward" in vars(layer) for layer in model.model.layers)
    assert not any("forward" in vars(layer) for layer in model.model.layers)


def test_what_cannot_be_compiled_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(OptionError, match="mixed_precision_dtype; pass dtype"):
        check_compile({"mixed_precision_dtype": "bfloat16"})
    monkeypatch.setattr("copyspec_eval.decoding.kernels.is_available", lambda: False)
    with pytest.raises(OptionError, match="needs a C\\+\\+ compiler; install g\\+\\+"):
        check_compile({})
    with pytest.raises(ModelError, match="for models on a CPU; leave it out"):
        compiling.compile_layers(fresh_model("qwen2").to("meta"))
    model = fresh_model("qwen2")
    model.model.layers = torch.nn.ModuleList()
    with pytest.raises(ModelError, match="no layers to compile in type 'qwen2'; leave it out"):
        compiling.compile_layers(model)
