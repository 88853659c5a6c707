"""Packed weights compute what the layers' own do, and leave the model as it was."""

from __future__ import annotations

import functools
from typing import Any

import pytest
import torch
from tiny_models import tiny_model
from transformers.pytorch_utils import Conv1D

from copyspec_eval.decoding.packing import packed

PACKS = torch.ops.mkldnn._is_mkldnn_bf16_supported()
"""Whether this processor, or the one that oneDNN is told to be, multiplies in bfloat16."""


class Doubled(torch.nn.Linear):
    """Its forward is its own business."""

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        return 2 * super().forward(hidden)


def layers(dtype: torch.dtype) -> torch.nn.Sequential:
    torch.manual_seed(0)
    made = torch.nn.Sequential(
        torch.nn.Linear(64, 96), Doubled(96, 96), torch.nn.Linear(96, 32, bias=False)
    )
    return made.to(dtype)


@pytest.mark.parametrize(
    ("dtype", "most"), [(torch.bfloat16, 0.05), (torch.float32, 1e-5)], ids=str
)
@pytest.mark.parametrize("width", [1, 2, 16, 33])
def test_the_same_numbers_within_rounding(width: int, dtype: torch.dtype, most: float) -> None:
    model = layers(dtype)
    hidden = torch.randn(3, width, 64).to(dtype)
    with torch.inference_mode(), packed(model):
        found = model(hidden)
    wanted = layers(torch.float64)(hidden.double())
    assert found.dtype == dtype
    assert found.shape == (3, width, 32)
    assert (found.double() - wanted).abs().max() < most * wanted.std()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
def test_the_layers_of_gpt2_are_packed_too(dtype: torch.dtype) -> None:
    """Their weights stand the other way round; a row has the same bits alone and beside others."""
    torch.manual_seed(0)
    layer = Conv1D(48, 64).to(dtype)
    torch.nn.init.normal_(layer.bias)
    model, rows = torch.nn.Sequential(layer), torch.randn(500, 64).to(dtype)
    wanted = model(rows).double()
    with torch.inference_mode(), packed(model, exact=True):
        assert ("forward" in vars(layer)) == (PACKS or dtype == torch.float32)
        together = model(rows)
        alone = torch.cat([model(row) for row in rows.split(1)])
    if PACKS or dtype == torch.float32:
        assert torch.equal(alone, together)
    assert (together.double() - wanted).abs().max() < 0.05 * wanted.std()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
def test_only_plain_layers_are_packed_and_all_are_given_back(dtype: torch.dtype) -> None:
    packs = PACKS or dtype == torch.float32
    model = layers(dtype)
    hooked: Any = model[2]
    theirs = hooked.forward = functools.partial(torch.nn.Linear.forward, hooked)
    weights = {name: weight.clone() for name, weight in model.state_dict().items()}
    with packed(model):
        assert [("forward" in vars(layer)) for layer in model] == [packs, False, True]
        assert hooked.forward is theirs
        with packed(model):
            pass
        assert ("forward" in vars(model[0])) == packs, "the inner one leaves the outer one's"
    assert "forward" not in vars(model[0])
    assert hooked.forward is theirs
    assert all(torch.equal(weights[name], now) for name, now in model.state_dict().items())
    with torch.autocast("cpu", torch.bfloat16), packed(model):
        assert not any("forward" in vars(layer) for layer in (model[0], model[1]))
    plain = layers(torch.float64)
    with packed(plain):
        assert not any("forward" in vars(layer) for layer in plain)


@pytest.mark.parametrize("shape", [(1, 96), (1, 1, 96), (1, 3, 96), (2, 1, 96)])
def test_a_row_of_padding_changes_no_shape_and_nothing_beyond_rounding(
    shape: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("copyspec_eval.decoding.packing._one_row_differs", lambda *given: True)
    layer = torch.nn.Sequential(torch.nn.Linear(96, 8))
    hidden = torch.randn(shape)
    with torch.inference_mode():
        with packed(layer, exact=True):
            padded = layer(hidden)
            beside = layer(torch.cat([hidden, hidden.flip(-1)], -2))
        wanted = layer(hidden)
    assert padded.shape == wanted.shape == (*shape[:-1], 8)
    torch.testing.assert_close(padded, wanted)
    if hidden.numel() == 96:
        assert torch.equal(padded, beside.narrow(-2, 0, 1)), "the bits of a row among several"


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
def test_in_exact_mode_a_row_has_the_bits_that_it_has_among_others(dtype: torch.dtype) -> None:
    layer = torch.nn.Sequential(torch.nn.Linear(2048, 64)).to(dtype)
    rows = torch.randn(64, 2048).to(dtype)
    with torch.inference_mode(), packed(layer, exact=True):
        if "forward" not in vars(layer[0]):
            pytest.skip("NOT TESTED: this processor packs nothing of this type")
        together = layer(rows)
        assert all(torch.equal(layer(rows[i : i + 1]), together[i : i + 1]) for i in range(64))


@pytest.mark.skipif(not PACKS, reason="NOT TESTED: this processor packs nothing")
def test_weights_are_packed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    model = tiny_model("qwen2", torch.bfloat16)
    with packed(model):
        first = model.lm_head.forward.args[1]
    with packed(model):
        assert model.lm_head.forward.args[1] is first


def test_weights_that_changed_are_packed_anew() -> None:
    model = layers(torch.bfloat16)
    hidden = torch.randn(1, 4, 64).bfloat16()
    with torch.inference_mode(), packed(model):
        before = model(hidden)
    with torch.no_grad():
        next(model[2].parameters()).mul_(2)
    with torch.inference_mode(), packed(model):
        assert torch.equal(model(hidden), 2 * before)
