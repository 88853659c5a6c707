"""Which answers lm-eval asks for, and where it keeps them."""

from __future__ import annotations

from collections import Counter
from typing import NamedTuple

from lm_eval.api.instance import Instance
from lm_eval.api.model import CacheHook


class RequestKey(NamedTuple):
    """One answer to give: the instance (by identity, as lm-eval hands it on) and its repeat."""

    instance: int
    repeat: int


def request_keys(requests: list[Instance]) -> list[RequestKey]:
    """The answer that belongs to each request.

    lm-eval lists an instance `repeats` times for as many answers, and the last one once more for
    each document that other ranks have over; the latter get an answer that is there already.
    """
    times: Counter[int] = Counter()
    keys = []
    for request in requests:
        keys.append(RequestKey(id(request), times[id(request)] % (request.repeats or 1)))
        times[id(request)] += 1
    return keys


def put_into_cache(cache: CacheHook, instance: Instance, answer: str) -> None:
    """Put an answer into lm-eval's `--use_cache`, and on the disk: a kill must not lose it."""
    cache.add_partial("generate_until", instance.args, answer)
    if cache.dbdict is not None:
        cache.dbdict.commit(blocking=True)
