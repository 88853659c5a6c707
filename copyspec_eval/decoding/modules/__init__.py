"""Forwards that take the place of those of a model's modules while the engine runs it."""

from collections.abc import Hashable, Iterator
from contextlib import contextmanager
from functools import partial

import torch
from transformers import PreTrainedModel

from copyspec_eval.decoding import attention, kernels
from copyspec_eval.decoding.model_copy import PerModel, model_structure, weights_state
from copyspec_eval.decoding.modules import experts
from copyspec_eval.decoding.modules.alone import alone_forward
from copyspec_eval.decoding.modules.elementwise import (
    attention_forward,
    gated_forward,
    norm_forward,
)
from copyspec_eval.decoding.modules.linear import Forward, linear_layers

_forwards: PerModel[dict[torch.nn.Module, Forward]] = PerModel()
"""They hold packed weights."""

_running: dict[PreTrainedModel, tuple[Hashable, Hashable]] = {}
"""Models that run now; their weights and structures."""


@contextmanager
def engine_kernels(model: PreTrainedModel, exact: bool) -> Iterator[tuple[Hashable, Hashable]]:
    """Run `model`, a copy, with the engine's attention and kernels.

    If `exact`, experts that our kernels do not serve compute in shapes that routing does not
    change. Within another `engine_kernels` of the model, that one holds.

    Yields the model's `weights_state` and `model_structure`.
    """
    if model in _running:
        yield _running[model]
        return
    loaded_attention = model.config._attn_implementation
    loaded_experts = model.config._experts_implementation
    if model._can_set_experts_implementation():
        if kernels.serve(model):
            model.set_experts_implementation(experts.ROUTED)
        elif exact:
            model.set_experts_implementation(experts.DENSE)
    weights, structure = weights_state(model), model_structure(model)
    served = weights, torch.is_autocast_enabled("cpu"), kernels.serve(model)
    forwards = _forwards.get(model, served, partial(_make_forwards, model))
    try:
        model.set_attn_implementation(attention.NAME)
        for module, forward in forwards.items():
            vars(module)["forward"] = forward
        _running[model] = weights, structure
        yield _running[model]
    finally:
        _running.pop(model, None)
        for module in forwards:
            vars(module).pop("forward", None)
        model.set_attn_implementation(loaded_attention)
        if loaded_experts != model.config._experts_implementation:
            model.set_experts_implementation(loaded_experts)


@torch.inference_mode()
def _make_forwards(model: PreTrainedModel) -> dict[torch.nn.Module, Forward]:
    if not kernels.serve(model):
        return {}
    layers = linear_layers(model)
    forwards: dict[torch.nn.Module, Forward] = {**layers}
    for module in model.modules():
        if module in forwards or "forward" in vars(module):
            continue
        forward = (
            norm_forward(module)
            or gated_forward(module, layers)
            or attention_forward(module)
            or alone_forward(module)
        )
        if forward is not None:
            forwards[module] = forward
    return forwards
