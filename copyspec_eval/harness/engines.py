"""The engines of a run's arms, with the steps and costs that were measured for them."""

from __future__ import annotations

from collections.abc import Sequence

from transformers import PreTrainedModel, PreTrainedTokenizerBase

from copyspec_eval.decoding.engine import Engine
from copyspec_eval.decoding.paired import PairedEngine
from copyspec_eval.decoding.prefix_cache import PrefixCache
from copyspec_eval.decoding.step_costs import step_costs
from copyspec_eval.drafters.registry import drafter_kind, longest_draft
from copyspec_eval.harness.arms import Arm
from copyspec_eval.harness.exact_steps import exact_steps
from copyspec_eval.types import CacheKind, DraftOptions, ExactSteps


class Engines:
    """Makes engines of one model; what is measured for them is measured once per batch size.

    Args:
        model, tokenizer: see there.
        options: how each arm drafts.
        exact: whether steps are exact.
        cache: whose cache decodes.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        tokenizer: PreTrainedTokenizerBase,
        options: Sequence[DraftOptions],
        exact: bool,
        cache: CacheKind,
    ) -> None:
        self._model = model
        self._tokenizer = tokenizer
        self._options = options
        self._exact = exact
        self._cache = cache
        self._steps: dict[int, ExactSteps] = {}
        self._costs: dict[tuple[int, int], dict[int, float]] = {}

    def of(self, arm: Arm, batch_size: int) -> Engine:
        """The engine of one arm."""
        steps = self.steps(batch_size)
        return Engine(
            self._model,
            arm.make_drafter,
            num_draft_tokens=self._longest(arm.options, batch_size),
            exact=steps,
            batch_size=batch_size,
            step_costs=self.costs(arm.options, batch_size),
            draft_model=arm.draft_model,
            prefix_cache=arm.prefix_cache,
            cache=self._cache,
        )

    def paired(
        self, arms: Sequence[Arm], batch_size: int, prefix_cache: PrefixCache | None
    ) -> PairedEngine:
        """All arms, and plain one-token decoding with a prefix cache of its own."""
        engines = [self.of(arm, batch_size) for arm in arms]
        return PairedEngine(self._model, engines, prefix_cache)

    def steps(self, batch_size: int) -> ExactSteps | None:
        """The exact steps of a batch size, which hold every arm's drafts; None without exact mode.

        Raises:
            OptionError, ModelError: as `exact_steps`.
        """
        if not self._exact:
            return None
        if batch_size not in self._steps:
            needed = [0]
            for options in self._options:
                needed.append(options.num_draft_tokens or 0)
                needed.append(options.delta if options.draft_model else 0)
            self._steps[batch_size] = exact_steps(
                self._model,
                self._tokenizer,
                longest=max(map(longest_draft, self._options)),
                needed=max(needed),
                batch_size=batch_size,
            )
        return self._steps[batch_size]

    def costs(self, options: DraftOptions, batch_size: int) -> dict[int, float] | None:
        """Seconds of a step by its number of draft tokens; None where no drafter asks for it."""
        steps = self.steps(batch_size)
        goes_by_costs = drafter_kind(options.drafter).num_draft_tokens is None
        if not goes_by_costs or (steps and steps.kind == "fixed width"):
            return None
        longest = self._longest(options, batch_size)
        if (batch_size, longest) not in self._costs:
            self._costs[batch_size, longest] = step_costs(
                self._model, batch_size, longest, steps, self._cache
            )
        return self._costs[batch_size, longest]

    def _longest(self, options: DraftOptions, batch_size: int) -> int:
        """Tokens of the longest draft, within what exact steps hold."""
        steps, longest = self.steps(batch_size), longest_draft(options)
        return min(longest, steps.num_draft_tokens) if steps else longest
