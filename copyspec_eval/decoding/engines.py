"""The engines of a model, with the steps and costs that were measured for them."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field

from transformers import PreTrainedModel, PreTrainedTokenizerBase

from copyspec_eval.decoding.draft_model import DraftModel
from copyspec_eval.decoding.engine import Engine
from copyspec_eval.decoding.exactness import exact_mode
from copyspec_eval.decoding.paired import PairedEngine
from copyspec_eval.decoding.prefix_cache import PrefixCache
from copyspec_eval.decoding.step_costs import step_costs
from copyspec_eval.drafters.registry import DrafterFactory, drafter_kind, longest_draft
from copyspec_eval.types import CacheKind, DraftOptions, ExactMode


@dataclass(frozen=True, slots=True)
class Drafting:
    """A way of drafting, loaded.

    Attributes:
        options: how it drafts.
        make_drafter: makes each request's drafter.
        prefix_cache: what was read before; None for none.
        draft_model: that of `options`.
    """

    options: DraftOptions
    make_drafter: DrafterFactory
    prefix_cache: PrefixCache | None = None
    draft_model: DraftModel | None = None


@dataclass(frozen=True, slots=True)
class Measured:
    """What was measured of a model for some ways of drafting; it holds no reference to the model.

    Attributes:
        modes: the way of exact mode, by batch size.
        costs: seconds of a step by its number of draft tokens; by batch size and longest draft.
    """

    modes: dict[int, ExactMode] = field(default_factory=dict)
    costs: dict[tuple[int, int], dict[int, float]] = field(default_factory=dict)


class Engines:
    """Makes engines of one model; what is measured for them is measured once per batch size.

    Args:
        model: what decodes.
        tokenizer: the model's; exact mode alone needs it.
        options: every way in which its engines draft.
        exact: whether steps are exact.
        cache: whose cache decodes.
        measured: what is known already of this model and these options; it grows.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        tokenizer: PreTrainedTokenizerBase | None,
        options: Sequence[DraftOptions],
        exact: bool,
        cache: CacheKind,
        measured: Measured | None = None,
    ) -> None:
        self._model = model
        self._tokenizer = tokenizer
        self._options = options
        self._exact = exact
        self._cache = cache
        self._measured = measured or Measured()
        self._groups = itertools.count()

    def of(self, drafting: Drafting, batch_size: int) -> Engine:
        """An engine that drafts in one of those ways."""
        return Engine(
            self._model,
            drafting.make_drafter,
            num_draft_tokens=self._longest(drafting.options, batch_size),
            exact=self.mode(batch_size),
            batch_size=batch_size,
            step_costs=self.costs(drafting.options, batch_size),
            draft_model=drafting.draft_model,
            prefix_cache=drafting.prefix_cache,
            cache=self._cache,
        )

    def paired(
        self, draftings: Sequence[Drafting], batch_size: int, prefix_cache: PrefixCache | None
    ) -> PairedEngine:
        """All of `draftings`, and plain one-token decoding with a prefix cache of its own."""
        engines = [self.of(drafting, batch_size) for drafting in draftings]
        return PairedEngine(self._model, engines, prefix_cache, self._groups)

    def mode(self, batch_size: int) -> ExactMode | None:
        """The way of exact mode at a batch size; None without exact mode.

        Raises:
            OptionError, ModelError: as `exact_mode`.
        """
        if not self._exact:
            return None
        if batch_size not in self._measured.modes:
            needed = [0]
            for options in self._options:
                needed.append(options.num_draft_tokens or 0)
                needed.append(options.delta if options.draft_model else 0)
            self._measured.modes[batch_size] = exact_mode(
                self._model,
                self._tokenizer,
                longest=max(map(longest_draft, self._options)),
                needed=max(needed),
                batch_size=batch_size,
            )
        return self._measured.modes[batch_size]

    def costs(self, options: DraftOptions, batch_size: int) -> dict[int, float] | None:
        """Seconds of a step by its number of draft tokens; None where no drafter asks for it."""
        mode = self.mode(batch_size)
        goes_by_costs = drafter_kind(options.drafter).num_draft_tokens is None
        if not goes_by_costs or (mode and mode.width):
            return None
        longest = self._longest(options, batch_size)
        costs = self._measured.costs
        if (batch_size, longest) not in costs:
            costs[batch_size, longest] = step_costs(
                self._model, batch_size, longest, mode, self._cache
            )
        return costs[batch_size, longest]

    def _longest(self, options: DraftOptions, batch_size: int) -> int:
        """Tokens of the longest draft, within what an exact step holds."""
        mode, longest = self.mode(batch_size), longest_draft(options)
        most = mode.num_draft_tokens if mode else None
        return longest if most is None else min(longest, most)
