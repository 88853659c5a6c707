"""Keys and values of earlier prompts and answers, so that nothing is read twice."""

from collections import OrderedDict
from collections.abc import Hashable, Sequence
from dataclasses import dataclass

from copyspec_eval.decoding.cache import RowCache, States

_START = 0

_Key = tuple[int, tuple[int, ...]]
"""The number of the block before, and a block's own tokens."""


@dataclass(frozen=True, slots=True)
class _Block:
    number: int
    states: States
    num_bytes: int


class PrefixCache:
    """Keys and values in the host's memory, looked up by the longest common prefix of tokens.

    They lie in blocks of `block_length` tokens. A block stands for its own tokens and all those
    before it, so texts that begin alike share blocks. Over the `budget` in bytes, the least
    recently used blocks go, the later ones of a text first.

    >>> from copyspec_eval.decoding.cache import RowCache
    >>> import torch
    >>> cache, prefixes = RowCache(num_rows=1, capacity=8), PrefixCache(budget=1000)
    >>> cache.place(torch.zeros(6, dtype=torch.long), torch.arange(6), 6)
    >>> states = torch.arange(6.0).reshape(1, 1, 6, 1)  # of one layer, one head, one dimension
    >>> _ = cache.update(states, states, 0)
    >>> prefixes.begin("a model", block_length=2)
    >>> prefixes.keep([5, 6, 7, 8, 9], cache, row=0)
    >>> [prefixes.load(text, RowCache(1, 8), 0) for text in ([5, 6, 7, 8, 1, 1], [5, 1])]
    [4, 0]
    """

    def __init__(self, budget: float, block_length: int | None = None) -> None:
        self._budget = budget
        self._given_length = block_length
        self._block_length = 0
        self._owner: Hashable = None
        self._blocks: OrderedDict[_Key, _Block] = OrderedDict()
        self._next_number = _START + 1
        self.num_bytes = 0

    def begin(self, owner: Hashable, block_length: int) -> None:
        """Drop what was computed by anything but `owner`: a model as it is, and how it is run."""
        block_length = self._given_length or block_length
        if (self._owner, self._block_length) != (owner, block_length):
            self._blocks.clear()
            self.num_bytes = 0
        self._owner, self._block_length = owner, block_length

    def load(self, token_ids: Sequence[int], cache: RowCache, row: int) -> int:
        """Put what is stored of the beginning of `token_ids` into a row; the number of tokens."""
        path = self._path(token_ids)
        if path:
            cache.put(row, [self._blocks[key].states for key in path])
            self._touch(path)
        return len(path) * self._block_length

    def keep(self, token_ids: Sequence[int], cache: RowCache, row: int) -> None:
        """Keep the whole blocks of `token_ids`, whose keys and values begin a row."""
        path = self._path(token_ids)
        length = self._block_length
        first, end = len(path) * length, len(token_ids) // length * length
        for states in cache.copy(row, first, end, length) if first < end else ():
            key = self._key(path, token_ids)
            num_bytes = sum(tensor.nbytes for _, tensor, _ in states)
            block = _Block(self._next_number, states, num_bytes)
            if not self._has_room(block, path):
                break
            self._blocks[key] = block
            self._next_number += 1
            self.num_bytes += block.num_bytes
            path.append(key)
        self._touch(path)

    def _path(self, token_ids: Sequence[int]) -> list[_Key]:
        path: list[_Key] = []
        while (key := self._key(path, token_ids)) in self._blocks:
            path.append(key)
        return path

    def _key(self, path: Sequence[_Key], token_ids: Sequence[int]) -> _Key:
        start = len(path) * self._block_length
        before = self._blocks[path[-1]].number if path else _START
        return before, tuple(token_ids[start : start + self._block_length])

    def _has_room(self, block: _Block, path: Sequence[_Key]) -> bool:
        """Make room for a block after `path`, by dropping others."""
        needed = {*path}
        while self.num_bytes + block.num_bytes > self._budget:
            oldest = next((key for key in self._blocks if key not in needed), None)
            if oldest is None:
                return False
            self.num_bytes -= self._blocks.pop(oldest).num_bytes
        return True

    def _touch(self, path: Sequence[_Key]) -> None:
        # The first one last, so that none is dropped before those after it.
        for key in reversed(path):
            self._blocks.move_to_end(key)
