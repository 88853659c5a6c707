"""Where tensors lie: weights in huge pages, caches in memory only where they are written to."""

import gc
import mmap
import sys
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from copyspec_eval.decoding import memory

MIB = 1 << 20
HUGE_PAGES = Path("/sys/kernel/mm/transparent_hugepage/enabled")
linux_alone = pytest.mark.skipif(sys.platform != "linux", reason="reads Linux's list of mappings")


def mapping(address: int) -> dict[str, str]:
    """What Linux says of the mapping that has this address; empty if there is none."""
    inside, fields = False, {}
    for line in Path("/proc/self/smaps").read_text().splitlines():
        name, _, value = line.partition(":")
        if "-" in name.split()[0] and not name[0].isupper():
            first, last = (int(end, 16) for end in line.split()[0].split("-"))
            inside = first <= address < last
        elif inside:
            fields[name] = value.strip()
    return fields


def resident(address: int) -> int:
    return int(mapping(address).get("Rss", "0 kB").split()[0]) * 1024


@linux_alone
@pytest.mark.skipif(not HUGE_PAGES.exists(), reason="a kernel without huge pages")
@pytest.mark.parametrize("megabytes", [1, 50], ids=["of a chunk", "larger than a chunk"])
def test_weights_are_put_in_huge_pages(megabytes):
    weights = memory.empty_in_huge_pages(torch.empty(0), megabytes, MIB // 4)
    addresses = weights.data_ptr(), weights[-1, -1].data_ptr()
    assert all("hg" in mapping(address)["VmFlags"].split() for address in addresses)


@given(st.lists(st.tuples(st.integers(0, 99), st.booleans()), max_size=20))
def test_tensors_lie_beside_each_other(sizes):
    tensors = []
    for number, (size, is_half) in enumerate(sizes):
        like = torch.empty(0, dtype=torch.bfloat16 if is_half else torch.float32)
        tensors.append(memory.empty_in_huge_pages(like, 3, size).fill_(number))
        assert tensors[-1].dtype == like.dtype
        assert tensors[-1].data_ptr() % 64 == 0 or not size
    for number, (tensor, (size, _)) in enumerate(zip(tensors, sizes, strict=True)):
        assert tensor.shape == (3, size)
        assert (tensor == number).all()


@linux_alone
def test_large_weights_are_freed_alone():
    large = memory.empty_in_huge_pages(torch.empty(0), 40, MIB // 4).fill_(1)
    address = large.data_ptr()
    memory.empty_in_huge_pages(torch.empty(0), 10)
    assert resident(address) >= 40 * MIB
    del large
    gc.collect()
    assert resident(address) < 40 * MIB


@linux_alone
@pytest.mark.skipif(not hasattr(mmap, "MADV_NOHUGEPAGE"), reason="a kernel without huge pages")
def test_zeros_take_memory_only_where_they_are_written_to():
    zeros = memory.sparse_zeros(torch.empty(0), 64, MIB // 4)
    zeros[::8, 0] = 1
    assert resident(zeros.data_ptr()) <= MIB
    assert zeros.sum() == 8


def test_without_huge_pages_weights_lie_where_torch_puts_them(monkeypatch):
    monkeypatch.delattr(mmap, "MADV_HUGEPAGE", raising=False)
    assert memory.empty_in_huge_pages(torch.empty(0), 2, 3).shape == (2, 3)
