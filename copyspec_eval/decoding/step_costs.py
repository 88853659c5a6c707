"""Measured seconds of a step by the number of draft tokens that it verifies."""

from collections.abc import Sequence
from itertools import pairwise
from random import Random
from statistics import median
from time import perf_counter

from transformers import PreTrainedModel

from copyspec_eval.announced import announced
from copyspec_eval.decoding.cache import RowCache
from copyspec_eval.decoding.engine import Engine
from copyspec_eval.decoding.given import Given, num_text_ids, scripted_drafts
from copyspec_eval.decoding.model_support import position_limit
from copyspec_eval.decoding.prefix_cache import PrefixCache
from copyspec_eval.drafters.base import NoDrafter
from copyspec_eval.types import CacheKind, ExactMode

_CONTEXT = 512
_ROUNDS = 3
_TIMED_ONCE, _NOT_TIMED = 64, 128
"""Tokens from which a step is timed once, and draft tokens from which it is not timed at all."""


@announced("timing this model's steps")
def step_costs(
    model: PreTrainedModel,
    batch_size: int,
    num_draft_tokens: int,
    exact: ExactMode | None,
    cache: CacheKind,
) -> dict[int, float]:
    """Seconds of a step by its number of draft tokens: 0, 1, 3, 7, … and as many as fit.

    Each number is timed three times in turn with the others, and the median counts; wide steps once
    or not at all. Where rows have widths of their own, the number counts all rows' tokens together;
    a draft token lengthens the step for all rows and helps one, so it counts as many times as there
    are rows. With the model's own cache half of a draft is rejected, and the next step's extra time
    counts with it.
    """
    engine = Engine(
        model,
        NoDrafter,
        num_draft_tokens=num_draft_tokens,
        exact=exact,
        batch_size=batch_size,
        prefix_cache=_Blank(0) if cache == "copyspec" else None,
        cache=cache,
    )
    times = batch_size if engine.packs else 1
    most = times * (engine.widest - 1)
    counts = sorted({*((1 << power) - 1 for power in range(max(1, most).bit_length())), most})
    counts = [count for count in counts if count < _NOT_TIMED]
    narrow = [count for count in counts if batch_size // times * (1 + count) < _TIMED_ONCE]
    # The longest first: after one of a thousand tokens, a step finds nothing in the caches.
    timed = [*narrow, counts[-1], *reversed(counts), *narrow[::-1] * (_ROUNDS - 1)]
    warmed_up = len(narrow) + 1
    seconds: dict[int, list[float]] = {count: [] for count in counts}
    for count, taken in list(zip(timed, _seconds(model, engine, timed), strict=True))[warmed_up:]:
        seconds[count].append(taken)
    costs = {count: median(seconds[count]) for count in counts}
    # No step takes longer than a wider one: a time that says so was disturbed.
    costs = {count: min(costs[wider] for wider in counts if wider >= count) for count in counts}
    if cache != "copyspec":
        costs = {count: cost - costs[0] / 2 for count, cost in costs.items()}
    if most not in costs:
        (before, earlier), (last, latest) = sorted(costs.items())[-2:]
        costs[most] = latest + (most - last) * (latest - earlier) / (last - before)
    return {count: costs[0] + times * (cost - costs[0]) for count, cost in costs.items()}


def _seconds(model: PreTrainedModel, engine: Engine, counts: Sequence[int]) -> list[float]:
    """Of a step with each number of draft tokens, and with a model's own cache of the next one."""
    source, num_ids, longest = Random(0), num_text_ids(model), engine.widest - 1
    is_ours = engine.cache == "copyspec"
    rows = []
    for row in range(engine.batch_size):
        steps = []
        for count in counts:
            drafted = max(0, min(count - row * longest, longest)) if engine.packs else count
            steps += [(0, drafted)] if is_ours else [(drafted // 2, -(-drafted // 2)), (0, 0)]
        length = 1 + sum(1 + num_right for num_right, _ in steps)
        budget = length + longest
        context = max(1, int(min(_CONTEXT, position_limit(model) - budget)))
        ids = [source.randrange(num_ids) for _ in range(context + budget)]
        wrong_ids = [(token + 1) % num_ids for token in ids]
        drafts = scripted_drafts(ids[context:], steps, wrong_ids[context:], start=1)
        answer_ids = ids[context : context + length]
        rows.append(Given(ids[:context], answer_ids, drafts, budget, num_logits=1))
    ends: list[float] = []
    rows[-1].on_commit = lambda token_ids: ends.append(perf_counter())
    engine.generate(rows)
    return [after - before for before, after in pairwise(ends[:: 1 if is_ours else 2])]


class _Blank(PrefixCache):
    """Has every prompt, as zeros: what a step attends to does not change how long it takes."""

    def load(self, token_ids: Sequence[int], cache: RowCache, row: int) -> int:
        return len(token_ids)

    def keep(self, token_ids: Sequence[int], cache: RowCache, row: int) -> None:
        """Store nothing."""
