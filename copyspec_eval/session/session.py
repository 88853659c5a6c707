"""A loaded model as it decodes: whose cache serves it, how it is exact, and its engines."""

from __future__ import annotations

import itertools
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from weakref import WeakKeyDictionary

from transformers import PreTrainedModel, PreTrainedTokenizerBase

from copyspec_eval.decoding import model_support
from copyspec_eval.decoding.draft_model import DraftModel
from copyspec_eval.decoding.engine import Engine
from copyspec_eval.decoding.exactness import exact_mode
from copyspec_eval.decoding.model_copy import model_copy
from copyspec_eval.decoding.paired import PairedEngine
from copyspec_eval.decoding.prefix_cache import PrefixCache
from copyspec_eval.decoding.step_costs import step_costs
from copyspec_eval.decoding.trial import CacheChoice, check_cache, choose_cache
from copyspec_eval.drafters.registry import DrafterFactory, drafter_kind, longest_draft
from copyspec_eval.errors import ModelError
from copyspec_eval.types import DraftOptions, ExactMode


@dataclass(frozen=True, slots=True)
class Arm:
    """A way of drafting, ready for requests.

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


@dataclass(slots=True)
class _Measured:
    """What sessions learn about a model, without a reference to it.

    Attributes:
        structure: of the model then; a model of another structure is measured anew.
        caches: whose cache serves it, by exactness and rows.
        modes: of exact mode, by longest draft, tokens that a step must hold, and rows.
        costs: seconds of a step by its draft tokens; by cache, mode, rows and longest draft.
        prefix_caches: of `Session.prefix_cache`, by budget.
    """

    structure: Hashable
    caches: dict[tuple[bool, int], CacheChoice] = field(default_factory=dict)
    modes: dict[tuple[int, int, int], ExactMode] = field(default_factory=dict)
    costs: dict[Hashable, dict[int, float]] = field(default_factory=dict)
    prefix_caches: dict[int, PrefixCache] = field(default_factory=dict)


_MEASURED: WeakKeyDictionary[PreTrainedModel, _Measured] = WeakKeyDictionary()


class Session:
    """Makes engines of a model; all that is tried and measured is so once in the model's life.

    They decode with a copy of it, so make and use both within `one_at_a_time`.

    Args:
        model: in evaluation mode.
        tokenizer: the model's; exact mode alone needs it.
        options: every way in which engines draft.
        exact: whether steps are exact.
        rows: side by side, for which the model's cache is tried.

    Attributes:
        model: the copy that decodes.
        cache: whose cache does.
        reason: why it is the model's own, which serves one request at a time; "" if it is ours.

    Raises:
        ModelError: the model cannot be served so.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        tokenizer: PreTrainedTokenizerBase | None,
        options: Sequence[DraftOptions],
        *,
        exact: bool,
        rows: int,
    ) -> None:
        if model.training:
            raise ModelError("the model is in training mode; call model.eval() first")
        model_support.check_uncompiled(model)
        self.model, structure = model_copy(model)
        structure = structure, model.dtype, model.device
        measured = _MEASURED.get(model)
        if measured is None or measured.structure != structure:
            model_support.check_config(model.config)
            measured = _MEASURED[model] = _Measured(structure)
        if (exact, rows) not in measured.caches:
            if exact:
                model_support.check_exact(self.model)
            measured.caches[exact, rows] = choose_cache(self.model, exact=exact, batch_size=rows)
        self.cache, self.reason = measured.caches[exact, rows]
        self._measured = measured
        self._tokenizer = tokenizer
        self._options = options
        self._exact = exact
        self._groups = itertools.count()

    def prefix_cache(self, num_bytes: int) -> PrefixCache | None:
        """One that all sessions of the model share which ask for as many bytes; None for none."""
        if not num_bytes or self.reason:
            return None
        return self._measured.prefix_caches.setdefault(num_bytes, PrefixCache(num_bytes))

    def engine(self, arm: Arm, batch_size: int) -> Engine:
        return Engine(
            self.model,
            arm.make_drafter,
            num_draft_tokens=self._longest(arm.options, batch_size),
            exact=self.mode(batch_size),
            batch_size=batch_size,
            step_costs=self.costs(arm.options, batch_size),
            draft_model=arm.draft_model,
            prefix_cache=arm.prefix_cache,
            cache=self.cache,
        )

    def paired(
        self, arms: Sequence[Arm], batch_size: int, prefix_cache: PrefixCache | None
    ) -> PairedEngine:
        """All of `arms`, and plain one-token decoding."""
        engines = [self.engine(arm, batch_size) for arm in arms]
        return PairedEngine(self.model, engines, prefix_cache, self._groups)

    def mode(self, batch_size: int) -> ExactMode | None:
        """The way of exact mode at a batch size; None without exact mode."""
        if not self._exact:
            return None
        longest, needed = max(map(longest_draft, self._options)), 0
        for each in self._options:
            needed = max(needed, each.num_draft_tokens or 0, each.delta if each.draft_model else 0)
        modes = self._measured.modes
        if (longest, needed, batch_size) not in modes:
            modes[longest, needed, batch_size] = exact_mode(
                self.model, self._tokenizer, longest=longest, needed=needed, batch_size=batch_size
            )
        return modes[longest, needed, batch_size]

    def costs(self, options: DraftOptions, batch_size: int) -> dict[int, float] | None:
        """Seconds of a step by its number of draft tokens; None where no drafter asks for it."""
        mode = self.mode(batch_size)
        goes_by_costs = drafter_kind(options.drafter).num_draft_tokens is None
        if not goes_by_costs or (mode and mode.width):
            return None
        longest = self._longest(options, batch_size)
        key, costs = (self.cache, mode, batch_size, longest), self._measured.costs
        if key not in costs:
            costs[key] = step_costs(self.model, batch_size, longest, mode, self.cache)
        return costs[key]

    def _longest(self, options: DraftOptions, batch_size: int) -> int:
        """Tokens of the longest draft, within what an exact step holds."""
        mode, longest = self.mode(batch_size), longest_draft(options)
        most = mode.num_draft_tokens if mode else None
        return longest if most is None else min(longest, most)


def checked_draft_model(model: PreTrainedModel) -> PreTrainedModel:
    """The copy of a loaded model that drafts, if the engine's forward is its own."""
    model_support.check_uncompiled(model)
    copy = model_copy(model).model
    check_cache(copy, "copyspec")
    return copy
