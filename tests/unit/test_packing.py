"""Packed weights compute what the layers' own do, and leave the model as it was."""

from __future__ import annotations

import functools
from typing import Any

import pytest
import torch
from tiny_models import tiny_model

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


@pytest.mark.parametrize("width", [1, 2, 16, 33])
def test_the_same_numbers_within_rounding(width: int) -> None:
    model = layers(torch.bfloat16)
    hidden = torch.randn(3, width, 64).bfloat16()
    with torch.inference_mode(), packed(model):
        found = model(hidden)
    wanted = layers(torch.float32)(hidden.float())
    assert found.dtype == torch.bfloat16
    assert found.shape == (3, width, 32)
    assert (found.float() - wanted).abs().max() < 0.05 * wanted.std()


def test_only_plain_layers_in_bfloat16_are_packed_and_all_are_given_back() -> None:
    model = layers(torch.bfloat16)
    hooked: Any = model[2]
    theirs = hooked.forward = functools.partial(torch.nn.Linear.forward, hooked)
    weights = {name: weight.clone() for name, weight in model.state_dict().items()}
    with packed(model):
        assert [("forward" in vars(layer)) for layer in model] == [PACKS, False, True]
        assert hooked.forward is theirs
        with packed(model):
            pass
        assert ("forward" in vars(model[0])) == PACKS, "the inner one leaves the outer one's"
    assert "forward" not in vars(model[0])
    assert hooked.forward is theirs
    assert all(torch.equal(weights[name], now) for name, now in model.state_dict().items())
    plain = layers(torch.float32)
    with packed(plain):
        assert not any("forward" in vars(layer) for layer in plain)


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
