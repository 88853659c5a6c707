"""What an engine's prefills and steps ask of a pretended device."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any
from unittest import mock

from pretended_device import Event, PretendedDevice

from copyspec_eval.decoding.choosing import TokenChooser
from copyspec_eval.decoding.engine import Engine


@dataclass
class Taken:
    """A prefill, or a step of a batch.

    It `is_greedy` where a row takes the argmax of bare logits; `num_forwards` are of the model and
    of a draft model, `num_picked` tokens were chosen otherwise, one at a time.
    """

    what: str
    is_greedy: bool
    num_forwards: int = 0
    num_picked: int = 0
    events: list[Event] = field(default_factory=list)

    @property
    def reads(self) -> list[Event]:
        """But for those of the prefix cache, which is in the host's memory."""
        return [e for e in self.events if e.kind != "upload" and not e.place.startswith("cache.py")]

    def check(self) -> None:
        """Fail unless the host waited no more than it has to, and no layer for it.

        Once for the argmax of each forward (a prefill reads that of its last one alone), and once
        for each other choice.
        """
        of_argmax = self.is_greedy * (self.num_forwards if self.what == "step" else 1)
        most = of_argmax + self.num_picked
        assert len(self.reads) == most, (self.what, most, self.reads)
        in_layers = [event for event in self.events if event.layer]
        assert not in_layers, (self.what, in_layers)


@contextmanager
def watched(pretended: PretendedDevice) -> Iterator[list[Taken]]:
    """Within it, prefills and steps of all engines are noted."""
    noted: list[Taken] = []
    running: list[Taken] = []

    def noting(what: str, method: Callable[..., Any]) -> Callable[..., Any]:
        def noted_method(self: Engine, which: Any, *args: Any) -> Any:
            # Of a prefill, prompts with their drafts.
            rows = [getattr(row, "sequence", row) for row in which if row]
            taken = Taken(what, any(row.chooser.is_argmax for row in rows))
            noted.append(taken)
            running.append(taken)
            first, before = len(pretended.events), pretended.num_forwards
            method(self, which, *args)
            running.clear()
            taken.events = pretended.events[first:]
            taken.num_forwards = pretended.num_forwards - before

        return noted_method

    def counted(*args: Any, pick: Callable[..., int] = TokenChooser._pick) -> int:
        for taken in running:
            taken.num_picked += 1
        return pick(*args)

    with (
        mock.patch.object(Engine, "_read", noting("prefill", Engine._read)),
        mock.patch.object(Engine, "_step", noting("step", Engine._step)),
        mock.patch.object(TokenChooser, "_pick", counted),
    ):
        yield noted
