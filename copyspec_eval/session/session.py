"""A loaded model that decodes: whose cache serves it, how it is exact, and its engines."""

import threading
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from copyspec_eval.decoding import model_support
from copyspec_eval.decoding.draft_model import DraftModel
from copyspec_eval.decoding.engine import Engine
from copyspec_eval.decoding.exactness import exact_mode
from copyspec_eval.decoding.model_copy import PerModel, model_copy
from copyspec_eval.decoding.prefix_cache import PrefixCache
from copyspec_eval.decoding.trial import check_cache, choose_cache
from copyspec_eval.drafters.registry import DrafterFactory, drafter_kind, longest_draft
from copyspec_eval.drafters.thresholds import StepClock
from copyspec_eval.errors import ModelError, RequestError
from copyspec_eval.session.settings import check_model_cache
from copyspec_eval.types import DraftOptions, ExactMode

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Arm:
    """A way of drafting, with what it needs: see `drafter_factory`, `PrefixCache`, `DraftModel`."""

    options: DraftOptions
    make_drafter: DrafterFactory
    prefix_cache: PrefixCache | None = None
    draft_model: DraftModel | None = None


_measured: PerModel[dict[Hashable, Any]] = PerModel()
"""What was found out about each model; no value refers to it."""

_locks: WeakKeyDictionary[torch.nn.Module, threading.RLock] = WeakKeyDictionary()
_in_use: WeakKeyDictionary[torch.nn.Module, bool] = WeakKeyDictionary()
_table_lock = threading.Lock()


class Session:
    """Makes engines of a model, which is tested and timed once in its life.

    They decode with a copy, `model`, so make and use both within `one_at_a_time`. `options` are all
    ways in which engines draft; the cache is tested with `rows`, which have to decode side by side
    if it `needs_rows`. `reason` says why `cache` is the model's own, which serves one request at a
    time; "" if it is ours.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        tokenizer: PreTrainedTokenizerBase | None,
        options: Sequence[DraftOptions],
        *,
        exact: bool,
        rows: int,
        needs_rows: bool = True,
    ) -> None:
        if model.training:
            raise ModelError("the model is in training mode; call model.eval() first")
        model_support.check_uncompiled(model)
        self.model, copied = model_copy(model)
        self._measured = _measured.get(model, (copied, model.dtype, model.device), dict)
        if not self._measured:
            model_support.check_config(model.config)
        if exact:
            model_support.check_exact(self.model)
        choose = partial(choose_cache, self.model, exact=exact, batch_size=rows)
        self.cache, self.reason = self._once(("cache", exact, rows), choose)
        batch_size = rows if needs_rows else 1
        check_model_cache(self.reason, options, exact=exact, batch_size=batch_size)
        self._tokenizer, self._options, self._exact = tokenizer, options, exact

    def prefix_cache(self, num_bytes: int) -> PrefixCache | None:
        if not num_bytes or self.reason:
            return None
        return self._once(("prefix cache", num_bytes), lambda: PrefixCache(num_bytes))

    def engine(self, arm: Arm, batch_size: int) -> Engine:
        mode, longest = self.mode(batch_size), longest_draft(arm.options)
        if mode is not None and mode.num_draft_tokens is not None:
            longest = min(longest, mode.num_draft_tokens)
        return Engine(
            self.model,
            arm.make_drafter,
            num_draft_tokens=longest,
            exact=mode,
            batch_size=batch_size,
            step_clock=self._step_clock(arm.options, batch_size),
            draft_model=arm.draft_model,
            prefix_cache=arm.prefix_cache,
            cache=self.cache,
        )

    def mode(self, batch_size: int) -> ExactMode | None:
        """How steps are exact at a batch size; None without exact mode."""
        if not self._exact:
            return None
        longest, needed = max(map(longest_draft, self._options)), 0
        for each in self._options:
            needed = max(needed, each.num_draft_tokens or 0, each.delta if each.draft_model else 0)
        asked = {"longest": longest, "needed": needed, "batch_size": batch_size}
        find = partial(exact_mode, self.model, self._tokenizer, **asked)
        return self._once(("mode", *asked.values()), find)

    def _step_clock(self, options: DraftOptions, batch_size: int) -> StepClock | None:
        """What all arms learn of their steps; None if the drafter does not ask."""
        if drafter_kind(options.drafter).num_draft_tokens is not None:
            return None
        return self._once(("step clock", batch_size, self.mode(batch_size)), StepClock)

    def _once(self, key: Hashable, measure: Callable[[], T]) -> T:
        if key not in self._measured:
            self._measured[key] = measure()
        return self._measured[key]  # type: ignore[no-any-return]


@contextmanager
def one_at_a_time(*models: torch.nn.Module | None) -> Iterator[None]:
    """Wait until no other thread is within it for one of these models.

    Raises:
        RequestError: this thread is, e.g. because a streamer called back.
    """
    # In one order, so that no two threads wait for each other.
    in_order = sorted({model for model in models if model is not None}, key=id)
    with _table_lock:
        locks = [_locks.setdefault(model, threading.RLock()) for model in in_order]
    with ExitStack() as stack:
        for model, lock in zip(in_order, locks, strict=True):
            stack.enter_context(lock)
            if _in_use.get(model):
                raise RequestError(
                    "the model is generating already, in this thread; wait until that call returns"
                )
            _in_use[model] = True
            stack.callback(_in_use.pop, model)
        yield


def checked_draft_model(model: PreTrainedModel) -> PreTrainedModel:
    """The copy of a loaded model that drafts, if the engine's forward gives its tokens."""
    model_support.check_uncompiled(model)
    copy = model_copy(model).model
    check_cache(copy, "copyspec")
    return copy
