"""Random numbers by counter: any of them can be had alone, in any order."""

from __future__ import annotations

import functools
import hashlib
from collections import Counter
from collections.abc import Sequence

import numpy
from numpy.typing import NDArray

_GAMMA, _FIRST, _SECOND = (
    numpy.uint64(0x9E3779B97F4A7C15),
    numpy.uint64(0xBF58476D1CE4E5B9),
    numpy.uint64(0x94D049BB133111EB),
)


Integers = NDArray[numpy.uint64]
BITS = 53
"""Of each number: as many as a float64 between 0 and 1 holds."""


def numbers(seed: int, position: int, tokens: NDArray[numpy.int64] | int) -> Integers:
    """`BITS` random bits for each token, `[n]`, at a position of the output.

    SplitMix64 (Steele, Lea and Flood, 2014), whose state is a hash of seed and position, and whose
    step is the token. (numpy's Philox takes three times as long.)

    Args:
        seed: of a request.
        position: in the output, from 0.
        tokens: `[n]`, their ids; or how many there are, from 0 on.
    """
    digest = hashlib.blake2b(f"{seed} {position}".encode(), digest_size=8).digest()
    steps = _steps_of(tokens) if isinstance(tokens, int) else _steps(tokens.astype(numpy.uint64))
    state: Integers = steps + numpy.uint64(int.from_bytes(digest, "little"))
    state ^= state >> numpy.uint64(30)
    state *= _FIRST
    state ^= state >> numpy.uint64(27)
    state *= _SECOND
    state ^= state >> numpy.uint64(31)
    state >>= numpy.uint64(64 - BITS)
    return state


def uniform(drawn: Integers) -> NDArray[numpy.float64]:
    """Numbers of `BITS` bits as such between 0 and 1, neither included, in the same order."""
    values: NDArray[numpy.float64] = (drawn.astype(numpy.float64) + 0.5) * 2.0**-BITS
    return values


@functools.lru_cache(maxsize=4)
def _steps_of(count: int) -> Integers:
    """For a whole vocabulary, which is the same in every step."""
    return _steps(numpy.arange(count, dtype=numpy.uint64))


def _steps(tokens: Integers) -> Integers:
    steps: Integers = (tokens + numpy.uint64(1)) * _GAMMA
    return steps


class RequestSeeds:
    """A seed for each request: of the user's seed, the prompt, and how often it was asked before.

    So it depends on neither the batch nor the other requests.
    """

    def __init__(self) -> None:
        self._times_asked: Counter[bytes] = Counter()

    def next_seed(self, seed: int, prompt_ids: Sequence[int]) -> int:
        """The seed of the next request with this prompt."""
        asked = hashlib.sha256(f"{seed}:{tuple(prompt_ids)}".encode())
        key = asked.digest()
        self._times_asked[key] += 1
        asked.update(f":{self._times_asked[key]}".encode())
        return int.from_bytes(asked.digest()[:8], "big", signed=True)
