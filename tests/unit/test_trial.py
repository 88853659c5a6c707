"""The trial at load passes sound models, and finds every kind of defect that it is there for."""

import copy
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch
from asking import model_from
from steps import first_mismatch
from tiny_models import skip_if_refused, tiny_config, tiny_model
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS, causal_mask_function

from copyspec_eval.decoding import attention, model_support, row_runner
from copyspec_eval.decoding import forward as forward_module
from copyspec_eval.decoding.cache import RowCache
from copyspec_eval.decoding.modules import experts
from copyspec_eval.decoding.trial import check_cache
from copyspec_eval.errors import ModelError
from copyspec_eval.types import ExactMode

OTHER_LOGITS = "gives other logits through the engine's cache"
FROM_THE_STEP = "computes a token's logits from what else is in the step"
HALVES = (torch.float16, torch.bfloat16)


check = partial(check_cache, cache="copyspec")


def windowed(window: int) -> Any:
    return model_from(tiny_config("mistral", sliding_window=window), std=None)


@pytest.mark.parametrize("batch_size", [pytest.param(1, marks=pytest.mark.slow), 3])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, *HALVES])
@pytest.mark.parametrize("model_type", ["qwen2", "gemma2", "mixtral", "gpt_oss"])
def test_sound_models_pass(model_type: str, dtype: torch.dtype, batch_size: int) -> None:
    skip_if_refused(model_type)
    if dtype == torch.float64 and model_support.has_experts(tiny_model(model_type)):
        return  # torch itself has no experts in float64
    for exact in (True, False):
        check(tiny_model(model_type, dtype), exact=exact, batch_size=batch_size)


def test_the_model_is_left_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    model = windowed(4096)
    states = [vars(model.config).copy(), [vars(module).copy() for module in model.modules()]]
    check(model, exact=False)
    monkeypatch.setattr(row_runner, "forward", lambda *_, **__: 1 / 0)
    with pytest.raises(ModelError):
        check(model, exact=False)
    assert states == [vars(model.config), [vars(module) for module in model.modules()]]


class ScaledByTheStep(torch.nn.Module):
    def __init__(self, layer: torch.nn.Module, over: tuple[int, ...]) -> None:
        super().__init__()
        self.layer, self.over = layer, over

    def forward(self, hidden: torch.Tensor) -> Any:
        scale = hidden.abs().amax(self.over, keepdim=True) / 127
        return self.layer((hidden / scale).round() * scale)


@pytest.mark.parametrize("over", [(0, 1, 2), (2,)], ids=["per tensor", "per token"])
@pytest.mark.parametrize("dtype", [torch.float32, *HALVES])
def test_a_scale_per_tensor(dtype: torch.dtype, over: tuple[int, ...]) -> None:
    model = copy.deepcopy(tiny_model("qwen2", dtype=dtype))
    for layer in model.model.layers:
        layer.mlp.down_proj = ScaledByTheStep(layer.mlp.down_proj, over)
    model.is_quantized = True
    is_sound = over == (2,)
    with nullcontext() if is_sound else pytest.raises(ModelError, match=FROM_THE_STEP):
        check(model, exact=False)
    assert is_sound != bool(first_mismatch(model, range(1, 60), ExactMode(16), 15, 1))


def unrestricted(**given: Any) -> Any:
    return attention.make_mask(**given | {"mask_function": causal_mask_function})


def capped() -> Any:
    skip_if_refused("gemma2")
    model = copy.deepcopy(tiny_model("gemma2"))
    for holder in (model.config, *(layer.self_attn for layer in model.model.layers)):
        holder.attn_logit_softcapping = 0.1
    return model


def uncapped(*given: Any, explicit: Any = attention._explicit) -> Any:
    return explicit(*given[:5], None, given[6])


def other_experts(*given: Any, expert: Any = experts._expert) -> Any:
    return expert(*given) * 3


def looking_ahead(*given: Any, step: Any = forward_module._step) -> Any:
    _, _, slots, extent = given
    visible = (torch.arange(extent) <= slots[:, None] + 1)[None, None]
    return replace(step(*given), visible=visible)


def shifted(*given: Any, update: Any = RowCache.update, **options: Any) -> Any:
    keys, values = (states.clone() for states in update(*given, **options))
    if keys.shape[2] > 16:
        keys[:, :, 14] = keys[:, :, 13]
    return keys, values


def without_trees(parts: Any, *rest: Any, step: Any = forward_module._step) -> Any:
    return step([part._replace(parents=None) for part in parts], *rest)


def biased(model: Any, cache: Any, parts: Any, *rest: Any) -> torch.Tensor:
    logits = forward_module.forward(model, cache, parts, *rest)
    is_wide = parts[0].start and len(parts[0].token_ids) > 1
    return logits + 0.02 * logits.std() if is_wide else logits


def failing(*given: Any, **options: Any) -> Any:
    raise IndexError("too\nfar")


QWEN2 = partial(tiny_model, "qwen2")
IN_ANY_WAY = f"{FROM_THE_STEP}|{OTHER_LOGITS}"
MASKS = (ALL_MASK_ATTENTION_FUNCTIONS._global_mapping, attention.NAME, unrestricted)


@pytest.mark.usefixtures("torchs_kernels")
@pytest.mark.parametrize(
    ("make", "owner", "name", "defect", "exact", "message"),
    [
        (partial(windowed, 12), *MASKS, False, OTHER_LOGITS),
        (partial(windowed, 4096), *MASKS, False, OTHER_LOGITS),
        (capped, attention, "_explicit", uncapped, True, OTHER_LOGITS),
        (partial(tiny_model, "mixtral"), experts, "_expert", other_experts, True, OTHER_LOGITS),
        *(
            (partial(QWEN2, dtype), forward_module, "_step", looking_ahead, False, IN_ANY_WAY)
            for dtype in (torch.float32, *HALVES)
        ),
        (QWEN2, RowCache, "update", shifted, False, OTHER_LOGITS),
        (QWEN2, forward_module, "_step", without_trees, False, f"{OTHER_LOGITS}.*in a tree"),
        (QWEN2, row_runner, "forward", biased, False, f"{OTHER_LOGITS}.*in a step"),
        (QWEN2, RowCache, "update", failing, False, r"cache \(IndexError: too far\); use --model"),
    ],
)
def test_a_defect_is_found(
    make: Any, owner: Any, name: str, defect: Any, exact: bool, message: str, monkeypatch: Any
) -> None:
    model = make()
    check(model, exact=exact)
    replaced = monkeypatch.setitem if isinstance(owner, dict) else monkeypatch.setattr
    replaced(owner, name, defect)
    with pytest.raises(ModelError, match=message):
        check(model, exact=exact)


def test_compiled_models_are_refused() -> None:
    model = copy.deepcopy(tiny_model("qwen2"))
    with pytest.raises(ModelError, match="pass what it wraps"):
        check(torch.compile(model), exact=False)  # type: ignore[arg-type]
    model.compile()
    with pytest.raises(ModelError, match="pass one that is not"):
        check(model, exact=False)


def test_a_model_whose_own_forward_fails_is_refused_in_a_line() -> None:
    model = copy.deepcopy(tiny_model("llama"))
    model.lm_head.forward = failing
    with pytest.raises(ModelError, match=r"fails in its own forward \(IndexError: too far\); che"):
        check(model, exact=True)
