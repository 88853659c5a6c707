"""Memory of tensors on a CPU, in pages of the size that suits how they are used."""

import contextlib
import math
import mmap
import sys
import threading

import torch

_HUGE_PAGE = 1 << 21
_CHUNK = 16 * _HUGE_PAGE
_LINE = 64
"""Bytes of a cache line."""

_lock = threading.Lock()
_unused = torch.empty(0, dtype=torch.uint8)
"""The rest of the last chunk of huge pages."""


def sparse_zeros(like: torch.Tensor, *shape: int) -> torch.Tensor:
    """Zeros; on a CPU, they take memory only where they are written to."""
    if not like.is_cpu or sys.platform == "win32":
        return like.new_zeros(shape)
    # A huge page would reach far behind what is written.
    memory = _mapped(math.prod(shape) * like.itemsize, "MADV_NOHUGEPAGE")
    return memory.view(like.dtype).view(shape)


def empty_in_huge_pages(like: torch.Tensor, *shape: int) -> torch.Tensor:
    """Room for weights on a CPU, which each step reads from end to end.

    A processor looks up each page that it reads; with pages of 4 KiB, that takes a fifth of the
    time of a one-token step's linear layers. Most weights are smaller than a huge page, so they are
    cut from chunks of several, and a chunk is freed with the last weights in it.
    """
    global _unused
    if not hasattr(mmap, "MADV_HUGEPAGE"):
        return like.new_empty(shape)
    size = math.prod(shape) * like.itemsize
    with _lock:
        if size > _CHUNK:
            memory = _huge_pages(size)
        else:
            if size > len(_unused):
                _unused = _huge_pages(_CHUNK)
            memory, _unused = _unused[:size], _unused[-(-size // _LINE) * _LINE :]
    return memory[:size].view(like.dtype).view(shape)


def _huge_pages(size: int) -> torch.Tensor:
    """At least `size` bytes from the start of a huge page on."""
    memory = _mapped(size + _HUGE_PAGE, "MADV_HUGEPAGE")
    return memory[-memory.data_ptr() % _HUGE_PAGE :]


def _mapped(size: int, advice: str) -> torch.Tensor:
    """Zeros, uint8 `[size]`, with advice on their pages where the system takes it."""
    memory = mmap.mmap(-1, size, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    with contextlib.suppress(AttributeError, OSError):
        memory.madvise(getattr(mmap, advice))
    return torch.frombuffer(memory, dtype=torch.uint8)
