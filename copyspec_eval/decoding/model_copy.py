"""A copy of a model for the engine to change: it shares the weights, and nothing else.

Decoding replaces a model's attention, the forwards of its layers, and for a moment its windows. On
a copy of the modules, the user's model stays as it is: other threads may run it at the same time.
"""

import copy
import hashlib
import math
from collections.abc import Callable, Hashable, Iterable, Iterator
from contextlib import suppress
from functools import partial
from types import MethodType
from typing import Any, Generic, NamedTuple, TypeVar
from weakref import WeakKeyDictionary

import torch
from torch.nn.modules.module import _global_forward_hooks, _global_forward_pre_hooks
from transformers import PreTrainedConfig, PreTrainedModel

from copyspec_eval.decoding.model_support import input_device

T = TypeVar("T")

_REBUILT = (torch.nn.Module, PreTrainedConfig, dict, list, tuple, set, partial, MethodType)
"""Attributes that may refer to modules or configs, so that the copy needs its own. All others are
shared."""

_SMALL = 1 << 16
"""Values of a weight that are all hashed."""


class PerModel(Generic[T]):
    """A value per model, made anew when the state of the model has changed."""

    def __init__(self) -> None:
        self._values: WeakKeyDictionary[PreTrainedModel, tuple[Hashable, T]] = WeakKeyDictionary()

    def get(self, model: PreTrainedModel, state: Hashable, make: Callable[[], T]) -> T:
        if model not in self._values or self._values[model][0] != state:
            self._values.pop(model, None)  # an old one goes first, and with it its memory
            self._values[model] = state, make()
        return self._values[model][1]


class ModelCopy(NamedTuple):
    """A copy of a model, and the `model_structure` that it had then."""

    model: PreTrainedModel
    structure: Hashable


_copies: WeakKeyDictionary[PreTrainedModel, ModelCopy] = WeakKeyDictionary()


def model_copy(model: PreTrainedModel) -> ModelCopy:
    """A copy of `model` that shares its parameters and buffers.

    The same copy is returned for as long as the model computes the same function of its weights.
    Hooks and replaced forwards can change that unnoticed, so a model that has any gets a new copy
    each time.
    """
    structure, is_known = model_structure(model), not _runs_unknown_code(model)
    current = _copies.pop(model, None)
    if current is None or current.structure != structure or not is_known:
        current = None  # an old copy goes first, and with it its packed weights
        current = ModelCopy(copy.deepcopy(model, _shared(model)), structure)
    if is_known:
        _copies[model] = current
    return current


def model_structure(model: PreTrainedModel) -> Hashable:
    """What decides the function that a model computes, apart from the values of its weights."""
    device = input_device(model).type  # the model's own is "meta" if weights are offloaded
    autocast = torch.is_autocast_enabled(device) and torch.get_autocast_dtype(device)
    modules = tuple(
        (name, type(module), type(module).forward, _token(vars(module)))
        for name, module in model.named_modules()
    )
    return autocast, modules, tuple(_token(vars(config)) for config in model_configs(model))


def model_configs(model: torch.nn.Module) -> list[PreTrainedConfig]:
    """The configs of all of a model's modules, and the configs in them, each once."""
    configs: dict[int, PreTrainedConfig] = {}

    def add(attributes: dict[str, Any]) -> None:
        for value in attributes.values():
            if isinstance(value, PreTrainedConfig) and id(value) not in configs:
                configs[id(value)] = value
                add(vars(value))

    for module in model.modules():
        add(vars(module))
    return [*configs.values()]


def weights_state(model: torch.nn.Module) -> Hashable:
    """What changes when the model's weights do, even if they are written to behind torch's back.

    torch counts the writes that it sees; `weights_hash` notices most of the others.
    """
    tensors = [*_tensors(model)]
    counts = tuple(
        (weight.data_ptr(), 0 if weight.is_inference() else weight._version)
        for _, weight in tensors
    )
    return counts, _hash(tensors)


def weights_hash(model: torch.nn.Module) -> str:
    """Hash of all values of small tensors and one of each row and column of large ones."""
    return _hash(_tensors(model))


def _hash(tensors: Iterable[tuple[str, torch.Tensor]]) -> str:
    digest = hashlib.blake2b(digest_size=6)
    samples: dict[tuple[torch.device, torch.dtype], list[torch.Tensor]] = {}
    for name, weight in tensors:
        digest.update(f"{name} {tuple(weight.shape)} {weight.dtype}".encode())
        # Offloaded weights are elsewhere, and some packed ones cannot be cut.
        with suppress(NotImplementedError, RuntimeError):
            values = _sample(weight.detach())
            samples.setdefault((values.device, values.dtype), []).append(values)
    for some in samples.values():
        with suppress(NotImplementedError, RuntimeError):
            digest.update(torch.cat(some).view(torch.uint8).cpu().numpy().data)
    return digest.hexdigest()


def _tensors(model: torch.nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    """All tensors of the modules, each once; quantised weights can be plain attributes."""
    given_ids: set[int] = set()
    for path, module in model.named_modules():
        for attributes in (module._parameters, module._buffers, vars(module)):
            for name, value in attributes.items():
                if isinstance(value, torch.Tensor) and id(value) not in given_ids:
                    given_ids.add(id(value))
                    yield f"{path}.{name}", value


def _sample(weight: torch.Tensor) -> torch.Tensor:
    values = weight.flatten()
    if len(values) <= _SMALL:
        return values
    # Packed weights can be one long row or column.
    is_matrix = 1 < weight.shape[-1] < len(values)
    columns = weight.shape[-1] if is_matrix else math.isqrt(len(values))
    most = min(len(values) // columns, columns - 1)
    # The step is at most a row, and goes through all columns before it meets one again.
    return values[:: next(step for step in range(most, 0, -1) if math.gcd(step, columns) == 1)]


def _shared(model: torch.nn.Module) -> dict[int, Any]:
    """For `deepcopy`: what is not copied, by its id."""
    shared: dict[int, Any] = {id(tensor): tensor for _, tensor in _tensors(model)}
    for module in model.modules():
        for value in vars(module).values():
            if not isinstance(value, _REBUILT):
                shared[id(value)] = value
    return shared


def _runs_unknown_code(model: torch.nn.Module) -> bool:
    """Whether anything but the model's classes takes part, accelerate's hooks apart."""
    return bool(_global_forward_hooks or _global_forward_pre_hooks) or any(
        module._forward_hooks
        or module._forward_pre_hooks
        or ("forward" in vars(module) and not hasattr(module, "_hf_hook"))
        for module in model.modules()
    )


def _token(value: Any) -> Hashable:
    if isinstance(value, dict):  # nearly all: a module's hooks, empty
        return tuple([(key, _token(each)) for key, each in value.items()]) if value else ()
    if value is None or isinstance(value, (str, int, float)):
        return value
    if isinstance(value, (list, tuple, set)):
        return tuple(map(_token, value))
    # Made anew in each copy, so a later one can get the address of an earlier one.
    if isinstance(value, partial):
        return id(value.func), _token(value.args), _token(value.keywords)
    if isinstance(value, MethodType):
        return id(value.__func__), _token(value.__self__)
    return id(value)
