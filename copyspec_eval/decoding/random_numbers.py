"""Random numbers by counter: any of them can be had alone, in any order."""

from __future__ import annotations

import hashlib

import numpy
from numpy.typing import NDArray

_GAMMA, _FIRST, _SECOND = (
    numpy.uint64(0x9E3779B97F4A7C15),
    numpy.uint64(0xBF58476D1CE4E5B9),
    numpy.uint64(0x94D049BB133111EB),
)


def uniforms(seed: int, position: int, tokens: NDArray[numpy.int64]) -> NDArray[numpy.float64]:
    """One number of each token at a position, uniform between 0 and 1, neither included.

    SplitMix64 (Steele, Lea and Flood, 2014), whose state is a hash of seed and position, and whose
    step is the token.

    Args:
        seed: of a request.
        position: in the output, from 0.
        tokens: `[n]`, their ids.

    Returns:
        `[n]`, 53 random bits each.
    """
    digest = hashlib.blake2b(f"{seed} {position}".encode(), digest_size=8).digest()
    state = tokens.astype(numpy.uint64)
    state += numpy.uint64(1)
    state *= _GAMMA
    state += numpy.uint64(int.from_bytes(digest, "little"))
    state ^= state >> numpy.uint64(30)
    state *= _FIRST
    state ^= state >> numpy.uint64(27)
    state *= _SECOND
    state ^= state >> numpy.uint64(31)
    state >>= numpy.uint64(11)
    return (state.astype(numpy.float64) + 0.5) * 2.0**-53
