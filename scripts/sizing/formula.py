"""Memory and time of a decoding step, from sizes and bandwidths: bounds, not measurements."""

import math
from dataclasses import dataclass

from sizing.shapes import Device, Shape


@dataclass(frozen=True, slots=True)
class Step:
    """What a step has to do.

    Attributes:
        rows: requests side by side.
        width: tokens of each row: the last one and its draft.
        context: tokens before them in each row.
        weight_bytes: bytes per weight; 2 in bfloat16, about 0.5 at four bits.
        value_bytes: bytes per number of the cache.
        every_expert: whether all experts compute every token, as in exact mode.
    """

    rows: int = 1
    width: int = 1
    context: int = 0
    weight_bytes: float = 2
    value_bytes: float = 2
    every_expert: bool = False


def memory(shape: Shape, step: Step) -> float:
    """Bytes of the weights and the cache of a model, all devices together.

    >>> from sizing.shapes import LLAMA_8B
    >>> f"{memory(LLAMA_8B, Step(rows=8, context=8192)) / 1e9:.1f} GB"
    '24.7 GB'
    """
    return shape.num_weights * step.weight_bytes + cache_bytes(shape, step)


def devices_needed(shape: Shape, device: Device, step: Step) -> int:
    """How many devices hold weights and cache, with nothing left for anything else."""
    return math.ceil(memory(shape, step) / device.memory)


def cache_bytes(shape: Shape, step: Step) -> float:
    """Bytes of the keys and values of all rows."""
    tokens = step.rows * (step.context + step.width)
    return tokens * shape.cached_values * step.value_bytes


def experts_read(shape: Shape, step: Step) -> float:
    """How many experts of a layer some token of the step is routed to, if all are equally likely.

    >>> from sizing.shapes import QWEN_235B
    >>> [round(experts_read(QWEN_235B, Step(width=width))) for width in (1, 4, 16, 64)]
    [8, 29, 82, 126]
    """
    if step.every_expert:
        return shape.num_experts
    chosen = shape.experts_per_token / shape.num_experts
    return shape.num_experts * float(1 - (1 - chosen) ** (step.rows * step.width))


def read_bytes(shape: Shape, step: Step) -> float:
    """Bytes that a step has to read: the weights that it needs, once for all rows, and the cache.

    Of the embeddings it reads a line per token, which is left out.
    """
    weights = shape.used_weights(experts_read(shape, step))
    return weights * step.weight_bytes + cache_bytes(shape, step)


def operations(shape: Shape, step: Step) -> float:
    """Floating-point operations of a step: two per weight and token, and those of the attention."""
    experts = shape.num_experts if step.every_expert else shape.experts_per_token
    weights = shape.used_weights(experts)
    keys = step.context + step.width
    attention = 2 * shape.num_layers * shape.num_heads * shape.head_dim * keys
    return 2 * step.rows * step.width * (weights + attention)


def step_seconds(shape: Shape, device: Device, step: Step, at_once: int = 1) -> float:
    """The least seconds of a step: what is read, or what is computed, at the device's speed.

    Left out is what kernels lose of it, what Python and launches take, and what devices tell each
    other.

    Args:
        shape, device, step: what is computed, on what.
        at_once: devices that share every layer and work at the same time (tensor parallelism).
            Devices that hold some layers each (`parallelize=True`) work one after the other: 1.

    >>> from sizing.shapes import H100, LLAMA_8B
    >>> f"{step_seconds(LLAMA_8B, H100, Step()) * 1e3:.2f} ms"
    '4.48 ms'
    """
    reading = read_bytes(shape, step) / device.bandwidth
    computing = operations(shape, step) / device.flops
    return max(reading, computing) / at_once
