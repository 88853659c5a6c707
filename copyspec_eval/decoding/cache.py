"""The key/value cache: preallocated, a length per row, rejected tokens simply overwritten."""

from collections.abc import Sequence
from typing import Any, Literal

import torch
from transformers import Cache

from copyspec_eval.decoding import kernels
from copyspec_eval.decoding.memory import sparse_zeros

StateName = tuple[int, Literal["keys", "values"]]
"""Of a layer, by its index."""

States = list[tuple[tuple[StateName, ...], torch.Tensor, torch.device]]
"""Of tokens, `[…, kv_heads, tokens, head_dim]` in host memory, those that are alike together."""


class RowCache(Cache):
    """Keys and values of `num_rows` requests, `[rows, kv_heads, capacity, head_dim]` per layer.

    There is no length and nothing to roll back: `place` sets where the next forward writes, and the
    mask limits what is attended to. Layers with a sliding window are stored at full length. `end`
    is behind all positions that were written to.
    """

    def __init__(self, num_rows: int, capacity: int) -> None:
        super().__init__(layers=[])
        self.num_rows = num_rows
        self.capacity = capacity
        self._tensors: dict[StateName, torch.Tensor] = {}
        self._rows = self._positions = torch.empty(0, dtype=torch.long)
        self._extent = 0
        self.end = 0

    def place(self, rows: torch.Tensor, positions: torch.Tensor, extent: int) -> None:
        """Set where the next forward writes, `[tokens]` int64 each, and how many keys it sees."""
        self._rows, self._positions, self._extent = rows, positions, extent

    def update(
        self,
        key_states: torch.Tensor,
        value_states: torch.Tensor,
        layer_idx: int,
        *args: Any,
        **kwargs: Any,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Write a forward's `[1, kv_heads, tokens, head_dim]`; returns all rows, to the extent."""
        states = key_states, value_states
        keys = self._tensor((layer_idx, "keys"), key_states)
        values = self._tensor((layer_idx, "values"), value_states)
        if kernels.takes(keys) and keys.dtype == values.dtype:
            kernels.write_states(states, (keys, values), self._rows, self._positions)
        else:
            for cache, new in zip((keys, values), states, strict=True):
                rows, positions = self._rows.to(cache.device), self._positions.to(cache.device)
                # In place of scatter_, which takes 30 times as long on a CPU.
                cache[rows, :, positions] = new[0].transpose(0, 1)
        return keys[:, :, : self._extent], values[:, :, : self._extent]

    @torch.inference_mode()
    def clear(self) -> None:
        """Zeros in place: what a request leaves behind cannot reach the next one."""
        for tensor in self._tensors.values():
            tensor[:, :, : self.end].zero_()
        self.end = 0

    @torch.inference_mode()
    def move(self, row: int, sources: Sequence[int], target: int) -> None:
        """Move a row's positions `sources` to `target …`, in their order."""
        device = next(iter(self._tensors.values())).device
        index = torch.tensor(sources, device=device)
        for tensor in self._tensors.values():
            moved = tensor[row].index_select(1, index.to(tensor.device))
            tensor[row, :, target : target + len(sources)] = moved

    @torch.inference_mode()
    def take(self, row: int, other: "RowCache", length: int) -> None:
        """Write the first `length` positions of another cache's first row into `row`."""
        for name, tensor in other._tensors.items():
            self._tensor(name, tensor)[row, :, :length] = tensor[0, :, :length]
        self.end = max(self.end, length)

    @torch.inference_mode()
    def copy(self, row: int, start: int, end: int, length: int) -> list[States]:
        """Copies of a row's positions `start … end - 1`, in parts of `length` each."""
        alike: dict[tuple[torch.device, torch.dtype, torch.Size], list[StateName]] = {}
        for name, tensor in self._tensors.items():
            alike.setdefault((tensor.device, tensor.dtype, tensor.shape), []).append(name)
        parts: list[States] = [[] for _ in range(start, end, length)]
        for (device, *_), names in alike.items():
            states = torch.stack([self._tensors[name][row, :, start:end] for name in names]).cpu()
            for part, piece in zip(parts, torch.split(states, length, dim=2), strict=True):
                # With memory of its own, so that it can be dropped alone.
                part.append((tuple(names), piece.clone(), device))
        return parts

    @torch.inference_mode()
    def put(self, row: int, parts: Sequence[States]) -> None:
        """Write what was copied, part after part, from a row's first position on."""
        for pieces in zip(*parts, strict=True):
            names, _, device = pieces[0]
            by_name = zip(*(states.to(device).unbind() for _, states, _ in pieces), strict=True)
            for name, of_name in zip(names, by_name, strict=True):
                together = torch.cat(of_name, dim=1)
                self._tensor(name, together)[row, :, : together.shape[1]] = together
                self.end = max(self.end, together.shape[1])

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """Zero: models use it only to guess positions and masks, which the engine passes."""
        return 0

    def get_mask_sizes(self, query_length: int, layer_idx: int) -> tuple[int, int]:
        return self._extent, 0

    def _tensor(self, name: StateName, like: torch.Tensor) -> torch.Tensor:
        """A layer's keys or values, made at its first write, for `[…, heads, n, head_dim]`."""
        if name not in self._tensors:
            heads, _, head_dim = like.shape[-3:]
            self._tensors[name] = sparse_zeros(like, self.num_rows, heads, self.capacity, head_dim)
        return self._tensors[name]
