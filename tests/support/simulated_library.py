"""A GPU's library that is not there: linear layers and attention whose last bits depend on shapes.

Sums are exact: products of bfloat16 numbers fit into float64, so no order of summing changes them.
Then the outputs of each token are moved by about a last bit times the number of its "kernel", which
a `Library` chooses as real ones do: by the width of the step, by the token's place in it, by the
number of keys, or by the rows of the batch. Kernel 0 changes nothing.
"""

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from typing import Any
from unittest import mock

import torch
from asking import model_from
from tiny_models import tiny_config

WIDTH = 16
"""Tokens per row of a fixed step, for drafts of up to 15 tokens."""
_LAST_BIT = 2.0**-8


@dataclass(frozen=True)
class Linear:
    """What a linear layer's kernel is chosen by: all rows' tokens come as one matrix.

    Attributes:
        num_calls: how many calls of the library came before this one.
        repeats: how often the library has been given these very numbers before.
    """

    hidden: torch.Tensor
    num_calls: int
    repeats: int

    @property
    def num_tokens(self) -> int:
        return len(self.hidden)

    @property
    def places(self) -> torch.Tensor:
        return torch.arange(len(self.hidden))


@dataclass(frozen=True)
class Attention:
    """What an attention's kernel is chosen by: `visible` is bool, `[rows, width, keys]`."""

    visible: torch.Tensor

    @property
    def num_rows(self) -> int:
        return self.visible.shape[0]

    @property
    def width(self) -> int:
        return self.visible.shape[1]

    @property
    def num_keys(self) -> int:
        return self.visible.shape[2]

    @property
    def lengths(self) -> torch.Tensor:
        """The last key that each token attends to, as a count, `[rows, width]`."""
        return self.num_keys - self.visible.flip(-1).int().argmax(-1)

    @property
    def ends(self) -> torch.Tensor:
        """The same of the last token of each row's step, `[rows, 1]`."""
        return self.lengths.amax(-1, keepdim=True)


def _first(call: Any) -> int:
    return 0


@dataclass(frozen=True)
class Library:
    """How kernels are chosen, and what may be decoded exactly.

    Attributes:
        linear, attention: the number of the kernel, for all tokens or by token.
        invariant: why this mode has to be refused; "" if it holds.
        fixed: the same of fixed width, for one row, and for a batch of several.
        leaks: attention that adds a little of the masked values.
    """

    linear: Callable[[Linear], Any] = _first
    attention: Callable[[Attention], Any] = _first
    invariant: str = ""
    fixed: tuple[str, str] = ("", "")
    leaks: bool = False
    _calls: Counter[int] = field(default_factory=Counter, compare=False)

    @contextmanager
    def installed(self) -> Iterator[None]:
        """Within it, torch's linear layers and attention are this library's, and none are ours."""
        functional = torch.nn.functional
        self._calls.clear()
        with (
            mock.patch("copyspec_eval.decoding.kernels.is_available", return_value=False),
            mock.patch.object(functional, "linear", self._linear),
            mock.patch.object(functional, "scaled_dot_product_attention", self._attention),
        ):
            yield

    def _linear(
        self, hidden: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None
    ) -> torch.Tensor:
        flat = hidden.reshape(-1, hidden.shape[-1]).double()
        known = hash(flat.numpy().tobytes())
        call = Linear(flat, self._calls.total(), self._calls[known])
        self._calls[known] += 1
        output = _moved(flat @ weight.double().T, self.linear(call))
        return output.to(hidden.dtype).view(*hidden.shape[:-1], -1)

    def _attention(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        attn_mask: torch.Tensor,
        scale: float,
    ) -> torch.Tensor:
        visible = attn_mask[:, 0] > -torch.inf
        scores = query.double() @ key.double().transpose(-1, -2) * scale + attn_mask.double()
        output = torch.softmax(scores, -1) @ value.double()
        if self.leaks:
            output += _LAST_BIT * (~visible[:, None]).double() @ value.double()
        kernels = torch.as_tensor(self.attention(Attention(visible)))
        kernels = kernels.expand(visible.shape[:2])[:, None]
        return _moved(output, kernels).to(query.dtype)


def _moved(output: torch.Tensor, kernels: Any) -> torch.Tensor:
    return output * (1 + _LAST_BIT * torch.as_tensor(kernels).double()[..., None])


@cache
def simulated_model() -> Any:
    """As long as a block of 512 keys; of sizes that torch's elementwise code takes as a whole."""
    shape: dict[str, Any] = {"hidden_size": 64, "intermediate_size": 64, "vocab_size": 128}
    shape |= {"num_attention_heads": 2, "num_key_value_heads": 2, "max_position_embeddings": 1024}
    config = tiny_config("llama", **shape, num_hidden_layers=1)
    return model_from(config, dtype=torch.bfloat16)


MASKED, PLACES = "with more masked keys", "at other places of the step"
WITH, IN = "where a block of keys ends with the step", "where a block of keys ends in the step"
AFTER, BESIDE, ROW = "with other tokens after them", "beside other rows", "in row 1 of the batch"
AGAIN = "when read again"

LIBRARIES: dict[str, Library] = {
    "every token alone": Library(),
    "attention in chunks of a token's context": Library(
        attention=lambda call: (call.lengths + 63) // 64
    ),
    "one kernel for a single token": Library(
        linear=lambda call: call.num_tokens == 1, invariant="in steps of 2"
    ),
    "split-k by the number of tokens": Library(
        linear=lambda call: (call.num_tokens > 4) + (call.num_tokens > 64),
        invariant="in steps of 5",
    ),
    "33 tokens as one, all other numbers otherwise": Library(
        linear=lambda call: call.num_tokens not in (1, 33), invariant="in steps of 2"
    ),
    "one kernel for whole tiles": Library(
        linear=lambda call: call.places < call.num_tokens // 8 * 8, invariant="in steps of 8"
    ),
    "stable at one width alone": Library(
        linear=lambda call: call.places * bool(call.num_tokens % WIDTH), invariant="in steps of 2"
    ),
    "the place in a tile": Library(
        linear=lambda call: call.places % 4 == 3, invariant="in steps of 5", fixed=(PLACES, PLACES)
    ),
    "one place of a row": Library(
        linear=lambda call: call.places == 11, invariant=PLACES, fixed=(PLACES, PLACES)
    ),
    "the row's tile": Library(
        linear=lambda call: call.places // WIDTH, invariant="in a prefill", fixed=("", ROW)
    ),
    "the largest number of the step": Library(
        linear=lambda call: call.hidden.abs().amax() % 1,
        invariant="in steps of 2",
        fixed=(AFTER, BESIDE),
    ),
    "the number of rows": Library(attention=lambda call: call.num_rows > 1),
    "the number of keys": Library(attention=lambda call: call.num_keys // 64, invariant=MASKED),
    "splits by width and keys": Library(
        attention=lambda call: call.num_keys // (64 * call.width), invariant="in steps of 2"
    ),
    "blocks of keys up to the step's end": Library(
        attention=lambda call: (call.ends + 63) // 64, invariant=MASKED, fixed=(IN, IN)
    ),
    "a block of keys that ends with the step": Library(
        attention=lambda call: (call.ends % 64 == 0) & (call.width > 1),
        invariant=WITH,
        fixed=(WITH, WITH),
    ),
    "masked values that count": Library(
        leaks=True, invariant="in steps of 2", fixed=(AFTER, AFTER)
    ),
    "other bits from run to run": Library(
        linear=lambda call: call.num_calls * 2654435761 % 2**32 < 2**29,
        invariant=AGAIN,
        fixed=(AGAIN, AGAIN),
    ),
    "another kernel after some time": Library(
        linear=lambda call: call.num_calls > 150, invariant=AGAIN, fixed=(AGAIN, AGAIN)
    ),
    "another kernel for what was read before": Library(
        linear=lambda call: call.repeats > 0, invariant=AGAIN, fixed=(AGAIN, AGAIN)
    ),
}
"""By what bits depend on: one property at a time, and what is known of real libraries."""
