"""What occupies the rows of a step: requests on their way, what they are fed, and their time."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from time import perf_counter

import torch

from copyspec_eval.decoding.choosing import TokenChooser
from copyspec_eval.decoding.row import Row
from copyspec_eval.types import Draft, Generation


@dataclass(slots=True)
class Slot:
    """A request that occupies a row of the cache, and its seconds so far.

    Attributes:
        index: of the request among those asked.
        row: its tokens and its drafter.
        chooser: how the model chooses its tokens.
        extent: cache positions that it can come to need.
        started: when its prefill began, on the engine's stopwatch.
        prefill_seconds, decode_seconds: as in `Generation`.
    """

    index: int
    row: Row
    chooser: TokenChooser
    extent: int
    started: float
    prefill_seconds: float = 0.0
    decode_seconds: float = 0.0

    def choices(
        self, draft: Draft, argmax: list[int], logits: torch.Tensor
    ) -> Callable[[int], int]:
        """The model's choices for `verify`.

        Args:
            draft: what was verified.
            argmax: of each of the logits, if the chooser takes the argmax.
            logits: `[at least 1 + draft, vocabulary]`.
        """
        if self.chooser.is_argmax:
            return argmax.__getitem__
        text = self.row.text

        def choose(index: int) -> int:
            # Asked only after the tokens that lead there were accepted, one by one.
            if index:
                text.append(draft.token_ids[index - 1])
            return self.chooser.choose(text, logits[index])

        return choose

    def generation(self, ended: float, batch_size: int) -> Generation:
        """The finished request's answer; `ended` is on the engine's stopwatch."""
        row = self.row
        assert row.finish_reason is not None
        return Generation(
            token_ids=tuple(row.output_ids),
            finish_reason=row.finish_reason,
            num_forwards=row.num_forwards,
            num_prefill_tokens=row.num_prefill_tokens,
            attempts=tuple(row.attempts),
            spans=tuple(row.spans),
            prefill_seconds=self.prefill_seconds,
            decode_seconds=self.decode_seconds,
            latency_seconds=ended - self.started,
            batch_size=batch_size,
        )


class Stopwatch:
    """Time in laps that leave no gap; `restart` leaves one on purpose.

    Attributes:
        elapsed: seconds of all laps together.
    """

    def __init__(self) -> None:
        self.elapsed = 0.0
        self.restart()

    def restart(self) -> None:
        """Begin a lap now; what passed since the last one is not counted."""
        self._last = perf_counter()

    def lap(self) -> float:
        """Seconds since the last lap ended, or since `restart`."""
        now = perf_counter()
        seconds, self._last = now - self._last, now
        self.elapsed += seconds
        return seconds


def fed(slot: Slot | None, draft: Draft, width: int) -> list[int]:
    """A row's step: its first position, last token, draft, and padding that nobody reads."""
    if slot is None:
        return [0] * (1 + width)
    padding = [0] * (width - 1 - len(draft.token_ids))
    return [slot.row.length - 1, slot.row.output_ids[-1], *draft.token_ids, *padding]


def step_parents(draft: Draft, num_before: int, width: int) -> list[int]:
    """Of each token of a step, the index there of the one before it; -1 for the first.

    Args:
        draft: a chain or a tree.
        num_before: tokens of the text that are fed in front of it.
        width: of the step; padding follows the draft.

    >>> step_parents(Draft((5, 6, 7), parents=(-1, 0, -1)), num_before=2, width=6)
    [-1, 0, 1, 2, 1, 4]
    """
    if draft.parents is None:
        return list(range(-1, width - 1))
    of_draft = [num_before + parent for parent in draft.parents]
    padding = range(num_before + len(of_draft) - 1, width - 1)
    return [*range(-1, num_before - 1), *of_draft, *padding]
