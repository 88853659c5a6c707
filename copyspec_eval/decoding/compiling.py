"""Decoder layers as compiled graphs: a few kernels where there were dozens, and little Python.

A layer is traced with symbols for its sizes, and compiled by inductor for all layers that are like
it. So one graph serves steps of all widths. Linear layers on packed weights and the attention stay
the kernels that they are; norms, rotary embeddings, activations and sums become one kernel wherever
they meet.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch.func import functional_call
from torch.utils import _pytree as pytree
from transformers import PreTrainedModel
from transformers.modeling_layers import GradientCheckpointingLayer

from copyspec_eval.decoding import attention, packing
from copyspec_eval.decoding.cache import RowCache, write
from copyspec_eval.decoding.graphs import Graph, compile_graph
from copyspec_eval.errors import ModelError

_REMEDY = "leave it out"


def compile_layers(model: PreTrainedModel) -> None:
    """Have `compiled` run the decoder layers of `model` as graphs from now on.

    A graph is made when it is first needed, which takes seconds; inductor keeps it on disk.

    Raises:
        ModelError: the model is not on a CPU, or has no decoder layers that transformers marks so.
    """
    if {weight.device.type for weight in model.parameters()} != {"cpu"}:
        raise ModelError(f"compile=true is for models on a CPU; {_REMEDY}")
    modules = [m for m in model.modules() if isinstance(m, GradientCheckpointingLayer)]
    if not modules:
        name = model.config.model_type
        raise ModelError(f"compile=true finds no layers to compile in type {name!r}; {_REMEDY}")
    kinds: dict[Hashable, int] = {}
    graphs: dict[Hashable, list[Graph]] = {}
    _layers[model] = [_Layer(module, kinds, graphs) for module in modules]


def is_compiled(model: torch.nn.Module) -> bool:
    """Whether `compile_layers` was called of it."""
    return model in _layers


@contextmanager
def compiled(model: torch.nn.Module) -> Iterator[None]:
    """Run the decoder layers of `model` as graphs, if `compile_layers` was called of it.

    Within `packing.packed`, and with the engine's attention.
    """
    layers = _layers.get(model, [])
    for layer in layers:
        layer.begin()
    try:
        yield
    finally:
        for layer in layers:
            del layer.module.forward


@dataclass(frozen=True, slots=True)
class _Call:
    """What a layer is called with.

    Attributes:
        args, kwargs: as the model passes them.
        tensors: all among them, in their order; the first are the hidden states.
        constants: what else is among them, but for the cache.
        cache: among them.
        mask: among them, of `attention.make_mask`.
    """

    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    tensors: list[torch.Tensor]
    constants: tuple[Any, ...]
    cache: RowCache
    mask: torch.Tensor


@dataclass(slots=True, eq=False)
class _Layer:
    """A decoder layer whose forward runs graphs.

    Attributes:
        module: the layer.
        kinds: of all layers of the model, numbered; those of a kind share their graphs.
        graphs: of all layers of the model, by kind and what the step is like.
    """

    module: Any
    kinds: dict[Hashable, int]
    graphs: dict[Hashable, list[Graph]]
    _kind: int = 0
    _number: int | None = None
    _folds: bool = False
    _like: tuple[torch.Tensor, ...] = ()
    _names: list[str] = field(default_factory=list)
    _linear: list[Any] = field(default_factory=list)
    _weights: list[torch.Tensor] = field(default_factory=list)
    _checked: set[int] = field(default_factory=set)

    def begin(self) -> None:
        """Take up the weights, and the place of the layer's forward."""
        forwards: dict[str, packing.PackedForward] = {
            name: vars(part)["forward"]
            for name, part in self.module.named_modules()
            if isinstance(vars(part).get("forward"), packing.PackedForward)
        }
        state = {**dict(self.module.named_parameters()), **dict(self.module.named_buffers())}
        self._names = [name for name in state if name.rpartition(".")[0] not in forwards]
        self._linear = [self.module.get_submodule(name) for name in forwards]
        linear = dict.fromkeys(forward.layers for forward in forwards.values())
        of_linear = [weight for some in linear for weight in (some.weight, some.bias)]
        self._weights = [
            *(state[name].detach() for name in self._names),
            *(weight for weight in of_linear if weight is not None),
        ]
        self._kind = self.kinds.setdefault(_kind(self.module), len(self.kinds))
        self.module.forward = self._forward

    def _forward(self, *args: Any, **kwargs: Any) -> Any:
        call = _call(args, kwargs)
        if self._number is None:
            # The first forward shows what the layer keeps. What it writes, the graph writes anew.
            before = call.cache.layers_in_use
            self._eager(call)
            [self._number] = call.cache.layers_in_use - before
            self._like = call.cache.layer(self._number)
            self._folds = bool(attention.folded_masks(call.mask))
        states = call.cache.layer(self._number, self._like)
        # Layers differ in their masks: some have a window.
        key = self._kind, id(call.mask)
        if key not in call.cache.prepared:
            call.cache.prepared[key] = self._prepare(call, states)
        graph, of_step = call.cache.prepared[key]
        if id(graph) in self._checked:
            return graph.run(*states, *of_step, *call.tensors, *self._weights)
        # In this order, for the keys and values have to be the graph's.
        right = self._eager(call)
        output = graph.run(*states, *of_step, *call.tensors, *self._weights)
        self._check(output, right)
        self._checked.add(id(graph))
        return output

    def _eager(self, call: _Call) -> Any:
        return type(self.module).forward(self.module, *call.args, **call.kwargs)

    def _check(self, output: Any, right: Any) -> None:
        """Refuse a graph that computes something else."""
        of_graph, of_layer = (pytree.tree_leaves(some)[0].nan_to_num() for some in (output, right))
        difference = (of_graph.double() - of_layer.double()).norm()
        # Roundings are elsewhere in a graph.
        tolerance = torch.finfo(of_layer.dtype).eps ** 0.5
        if not difference <= tolerance * of_layer.double().norm():
            name = type(self.module).__name__
            raise ModelError(f"compile=true gives {name} another result; {_REMEDY}")

    def _prepare(
        self, call: _Call, states: tuple[torch.Tensor, ...]
    ) -> tuple[Graph, list[torch.Tensor]]:
        """The graph for a step, and the tensors that all layers of a kind share in it."""
        step = attention.current_step()
        masks = attention.folded_masks(call.mask)
        if self._folds and not masks:
            # It has them made.
            self._eager(call)
        of_step = [*call.cache.written_at, *masks.values(), *step.index_tensors(self._folds)]
        key = (self._kind, call.constants, call.cache.is_packed, *masks, len(of_step))
        graphs = self.graphs.setdefault(key, [])
        inputs = [*states, *of_step, *call.tensors]
        graph = next((graph for graph in graphs if graph.holds(inputs)), None)
        if graph is None:
            try:
                graph = compile_graph(
                    lambda *tensors: self._traced(tensors, call, [*masks], step),
                    inputs,
                    [_moving(number, tensor) for number, tensor in enumerate(inputs)],
                    self._weights,
                )
            except Exception as error:
                name, reason = type(self.module).__name__, str(error).partition("\n")[0]
                raise ModelError(
                    f"compile=true cannot compile {name} ({reason}); {_REMEDY}"
                ) from error
            graphs.append(graph)
        return graph, of_step

    def _traced(
        self,
        tensors: Sequence[torch.Tensor],
        call: _Call,
        masks: Sequence[attention.FoldedMask],
        step: attention.Step | attention.Packed,
    ) -> Any:
        """The layer's forward on `tensors`, which are in the order of `compile_graph`."""
        remaining = iter(tensors)
        keys, values, rows, positions = (next(remaining) for _ in range(4))
        folded = {of: next(remaining) for of in masks}
        indices = [next(remaining) for _ in step.index_tensors(self._folds)]
        replacing: dict[int, Any] = {id(old): next(remaining) for old in call.tensors}
        state = {name: next(remaining) for name in self._names}
        mask = replacing[id(call.mask)]
        attention.folded_masks(mask).update(folded)
        replacing[id(call.cache)] = _TracedCache(
            (keys, values), rows, positions, call.cache.is_packed, mask
        )
        args, kwargs = pytree.tree_map(
            lambda value: replacing.get(id(value), value), (call.args, call.kwargs)
        )
        with (
            self._linear_on(list(remaining)),
            attention.masked_as(step.with_index_tensors(indices)),
        ):
            return functional_call(self.module, state, args, kwargs)

    @contextmanager
    def _linear_on(self, weights: Sequence[torch.Tensor]) -> Iterator[None]:
        """The module as its class has it, but for linear layers on `weights`."""
        forwards: list[packing.PackedForward] = [part.forward for part in self._linear]
        remaining = iter(weights)
        traced = {
            some: replace(
                some,
                weight=next(remaining),
                bias=None if some.bias is None else next(remaining),
            )
            for some in dict.fromkeys(forward.layers for forward in forwards)
        }
        del self.module.forward
        for part, forward in zip(self._linear, forwards, strict=True):
            part.forward = replace(forward, layers=traced[forward.layers])
        try:
            yield
        finally:
            for part, forward in zip(self._linear, forwards, strict=True):
                part.forward = forward
            self.module.forward = self._forward


_layers: WeakKeyDictionary[torch.nn.Module, list[_Layer]] = WeakKeyDictionary()


@dataclass(frozen=True, slots=True)
class _TracedCache:
    """A layer's part of a `RowCache`, as it is traced; the mask says how much is attended to."""

    states: tuple[torch.Tensor, torch.Tensor]
    rows: torch.Tensor
    positions: torch.Tensor
    is_packed: bool
    mask: torch.Tensor

    def update(
        self, keys: torch.Tensor, values: torch.Tensor, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, ...]:
        """As `RowCache.update`."""
        for whole, new in zip(self.states, (keys, values), strict=True):
            write(whole, new, self.rows, self.positions, self.is_packed)
        return tuple(whole[:, :, : self.mask.shape[-1]] for whole in self.states)


def _call(args: tuple[Any, ...], kwargs: dict[str, Any]) -> _Call:
    cache = mask = None
    tensors: list[torch.Tensor] = []
    constants: list[Any] = []
    for value in (*args, *kwargs.values()):
        if isinstance(value, torch.Tensor):
            tensors.append(value)
            if attention.is_mask(value):
                mask = value
        elif isinstance(value, tuple):
            tensors += value
        elif isinstance(value, RowCache):
            cache = value
        else:
            constants.append(value)
    if cache is None or mask is None:
        raise ModelError(f"compile=true is not for layers that get no mask or no cache; {_REMEDY}")
    return _Call(args, kwargs, tensors, tuple(constants), cache, mask)


def _kind(module: torch.nn.Module) -> Hashable:
    """What layers have in common whose graphs are the same: all but weights and number."""
    plain = (bool, int, float, str, tuple, type(None))
    return tuple(
        (
            name,
            type(part),
            tuple(
                (key, value)
                for key, value in vars(part).items()
                if isinstance(value, plain) and key != "layer_idx"
            ),
            tuple((weight.shape, weight.dtype) for weight in part.parameters(recurse=False)),
            _packed_as(vars(part).get("forward")),
        )
        for name, part in module.named_modules()
    )


def _packed_as(forward: object) -> Hashable:
    if not isinstance(forward, packing.PackedForward):
        return None
    return forward.index, forward.layers.pads, tuple(forward.layers.sizes)


def _moving(number: int, tensor: torch.Tensor) -> tuple[int, ...]:
    """The dimensions of an input of a graph that change from step to step."""
    if number < 2:
        return 0, 2  # rows and capacity of keys and values
    has_features = tensor.is_floating_point() and tensor.ndim == 3
    return tuple(range(tensor.ndim - has_features))
