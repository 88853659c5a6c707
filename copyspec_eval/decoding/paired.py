"""Every request twice: with drafts, and by plain one-token decoding, in turn."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from transformers import PreTrainedModel

from copyspec_eval.decoding.differences import Rescorer
from copyspec_eval.decoding.engine import Engine, Request
from copyspec_eval.drafters.base import NoDrafter
from copyspec_eval.types import Difference, Generation


@dataclass(frozen=True, slots=True)
class Baseline:
    """What plain decoding makes of a request, and where the drafted answer parts from it."""

    generation: Generation
    difference: Difference | None


class PairedEngine:
    """Measures an engine against plain one-token decoding of the same model, cache and attention.

    Requests are taken in groups as large as the batch, so a batch is compared with a batch; a group
    is answered by both arms before the next begins, and the arm that goes first changes with every
    group. So whatever the machine does meanwhile, it does to both. The baseline feeds one token per
    row and step, never a padded width.

    Args:
        model: as for `engine`.
        engine: the arm that drafts.
    """

    def __init__(self, model: PreTrainedModel, engine: Engine) -> None:
        self._engine = engine
        self._plain = Engine(
            model, NoDrafter, num_draft_tokens=0, exact=False, batch_size=engine.batch_size
        )
        self._rescorer = Rescorer(model, self._plain, engine)

    def warm_up(self, request: Request) -> None:
        """As `Engine.warm_up`, both arms."""
        self._engine.warm_up(request)
        self._plain.warm_up(request)

    def check(self, requests: Sequence[Request]) -> None:
        """As `Engine.check`."""
        self._engine.check(requests)

    def generate(
        self,
        requests: Sequence[Request],
        on_finish: Callable[[int, Generation, Baseline], None],
    ) -> None:
        """Answer `requests` in the order given.

        Args:
            requests: what to answer.
            on_finish: called with a request's index, its drafted answer and its baseline once both
                are there.

        Raises:
            RequestError: as `check`; nothing is begun then.
        """
        self.check(requests)
        size = self._engine.batch_size
        for start in range(0, len(requests), size):
            group = requests[start : start + size]
            if start // size % 2 == 0:
                drafted = self._engine.generate(group, beside=requests)
                plain = self._plain.generate(group)
            else:
                plain = self._plain.generate(group)
                drafted = self._engine.generate(group, beside=requests)
            for index, request in enumerate(group):
                answer, baseline = drafted[index], plain[index]
                difference = self._rescorer.explain(request, answer.token_ids, baseline.token_ids)
                on_finish(start + index, answer, Baseline(baseline, difference))
