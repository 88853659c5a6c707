"""The key/value cache: preallocated, a length per row, rejected tokens simply overwritten."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from transformers import Cache


class RowCache(Cache):
    """Keys and values of `num_rows` requests, `capacity` tokens each.

    Per layer two tensors `[num_rows, kv_heads, capacity, head_dim]`, allocated at the layer's first
    write with its dtype and on its device. There is no length here and nothing to roll back: the
    engine sets before each forward which rows and which positions it writes (`place`), and its mask
    limits what is attended to. Sliding-window layers are kept at full length; the mask has their
    window.
    """

    def __init__(self, num_rows: int, capacity: int) -> None:
        super().__init__(layers=[])
        self.num_rows = num_rows
        self.capacity = capacity
        self._keys: dict[int, torch.Tensor] = {}
        self._values: dict[int, torch.Tensor] = {}
        self._first_row = 0
        self._positions = torch.empty(0, 0, dtype=torch.long)
        self._extent = 0

    def place(self, first_row: int, positions: torch.Tensor, extent: int) -> None:
        """Set where the next forward writes and how far it attends.

        Args:
            first_row: the forward's rows are `first_row …` in order.
            positions: `[rows, width]`, int64; where each new token goes, under `capacity`.
            extent: the attention gets positions `0 … extent - 1`.
        """
        self._first_row = first_row
        self._positions = positions
        self._extent = extent

    def update(
        self,
        key_states: torch.Tensor,
        value_states: torch.Tensor,
        layer_idx: int,
        *args: Any,
        **kwargs: Any,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Write `[rows, kv_heads, width, head_dim]`; views of the keys and values to the extent."""
        keys = self._write(self._keys, layer_idx, key_states)
        values = self._write(self._values, layer_idx, value_states)
        return keys, values

    @torch.inference_mode()
    def copy_row(self, source: int, target: int) -> None:
        """Copy a row's contents to another, so that the rows in use stay the first ones."""
        for store in (self._keys, self._values):
            for tensor in store.values():
                tensor[target].copy_(tensor[source])

    @torch.inference_mode()
    def move(self, row: int, sources: Sequence[int], target: int) -> None:
        """Move a row's positions `sources` to `target …`, in their order."""
        device = next(iter(self._keys.values())).device
        index = torch.tensor(sources, device=device)
        for store in (self._keys, self._values):
            for tensor in store.values():
                moved = tensor[row].index_select(1, index.to(tensor.device))
                tensor[row, :, target : target + len(sources)] = moved

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """Zero: models use it only to guess positions and masks, which the engine passes."""
        return 0

    def get_mask_sizes(self, query_length: int, layer_idx: int) -> tuple[int, int]:
        """Length and offset of the keys that the attention gets."""
        return self._extent, 0

    def _write(
        self, store: dict[int, torch.Tensor], layer_idx: int, states: torch.Tensor
    ) -> torch.Tensor:
        rows, heads, width, head_dim = states.shape
        if layer_idx not in store:
            shape = (self.num_rows, heads, self.capacity, head_dim)
            store[layer_idx] = states.new_zeros(shape)
        target = store[layer_idx][self._first_row : self._first_row + rows]
        positions = self._positions.to(target.device)
        index = positions[:, None, :, None].expand(rows, heads, width, head_dim)
        target.scatter_(2, index, states)
        return target[:, :, : self._extent]
