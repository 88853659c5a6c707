"""A function of tensors as one compiled graph, with symbols for sizes that change."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch._dynamo.source import ConstantSource
from torch._guards import TracingContext, tracing
from torch._inductor import standalone_compile
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv, StatelessSymbolicContext


@dataclass(frozen=True, slots=True)
class Graph:
    """A compiled function.

    Attributes:
        run: takes the inputs and the weights, and gives what the function does.
        holds: whether it does for inputs of such sizes.
    """

    run: Callable[..., Any]
    holds: Callable[[Sequence[torch.Tensor]], bool]


@torch.inference_mode(mode=False)
@torch.no_grad()
def compile_graph(
    function: Callable[..., Any],
    inputs: Sequence[torch.Tensor],
    moving: Sequence[Sequence[int]],
    weights: Sequence[torch.Tensor],
) -> Graph:
    """Trace `function` and compile it; inductor keeps the kernels on disk.

    Args:
        function: of the inputs and then the weights; it may write to its inputs.
        inputs: an example of them.
        moving: of each input, the dimensions whose sizes change from call to call.
        weights: tensors whose sizes do not; packed ones, too.
    """
    environment = ShapeEnv(duck_shape=False, specialize_zero_one=False)
    mode = FakeTensorMode(shape_env=environment)
    fakes = [
        _fake(mode, f"input_{number}", tensor, sizes)
        for number, (tensor, sizes) in enumerate(zip(inputs, moving, strict=True))
    ]
    fake_weights = [_fake(mode, f"weight_{n}", weight, ()) for n, weight in enumerate(weights)]
    examples: list[Any] = [*fakes, *fake_weights]
    graph = make_fx(function, tracing_mode="symbolic")(*examples)
    # So that the guards of both are in the same environment.
    with tracing(TracingContext(mode)):
        compiled = standalone_compile(
            graph,
            examples,
            dynamic_shapes="from_tracing_context",
            # A packed weight has no strides.
            options={"config_patches": {"size_asserts": False}},
        )
    return Graph(compiled, _guard(environment, fakes))


def _fake(
    mode: FakeTensorMode, name: str, tensor: torch.Tensor, moving: Sequence[int]
) -> FakeTensor:
    """What is traced in the place of a tensor, with a symbol for each of the sizes `moving`."""
    if tensor.is_mkldnn:
        like = torch.empty(tensor.shape, dtype=tensor.dtype)
    else:
        like = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype)
    sizes = [
        DimDynamic.DYNAMIC if number in moving else DimDynamic.STATIC
        for number in range(tensor.ndim)
    ]
    return mode.from_tensor(
        like,
        # Without a name of its own, it may be given the symbols of another.
        source=ConstantSource(name),
        symbolic_context=StatelessSymbolicContext(dynamic_sizes=sizes),
    )


def _guard(
    environment: ShapeEnv, fakes: Sequence[FakeTensor]
) -> Callable[[Sequence[torch.Tensor]], bool]:
    """Whether tensors have sizes and strides for which all that was traced and compiled holds."""
    guards = environment.produce_guards_expression(fakes, ignore_static=False)

    @functools.cache
    def hold(layouts: tuple[tuple[torch.Size, tuple[int, ...]], ...]) -> bool:
        some = [torch.empty_strided(*layout, device="meta") for layout in layouts]
        return guards is None or environment.evaluate_guards_expression(guards, some)

    return lambda tensors: hold(tuple((tensor.shape, tensor.stride()) for tensor in tensors))
