"""An engine for a loaded model; what is measured of the model is kept as long as it lives."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import Any
from weakref import WeakKeyDictionary

from transformers import PreTrainedModel, PreTrainedTokenizerBase

from copyspec_eval.decoding import model_support
from copyspec_eval.decoding.draft_model import DraftModel
from copyspec_eval.decoding.engine import Engine
from copyspec_eval.decoding.engines import Drafting, Engines, Measured
from copyspec_eval.decoding.model_copy import model_copy
from copyspec_eval.decoding.prefix_cache import PrefixCache
from copyspec_eval.decoding.trial import CacheChoice, check_cache, choose_cache
from copyspec_eval.drafters.registry import default_drafter, drafter_factory
from copyspec_eval.errors import ModelError, OptionError
from copyspec_eval.types import PAPER_GAMMA, DraftOptions


@dataclass(slots=True)
class _Kept:
    """Of one model, as long as it computes the same function of its weights.

    Attributes:
        structure: of the model when this was measured.
        caches: whose cache serves it, by exactness and batch size.
        measured: by ways of drafting and exactness.
        prefix_caches: what was read, by budget.
    """

    structure: Hashable
    caches: dict[tuple[bool, int], CacheChoice] = field(default_factory=dict)
    measured: dict[tuple[DraftOptions, bool], Measured] = field(default_factory=dict)
    prefix_caches: dict[int, PrefixCache] = field(default_factory=dict)


_KEPT: WeakKeyDictionary[PreTrainedModel, _Kept] = WeakKeyDictionary()


def draft_options(drafter: str | None, gamma: int | None, **others: Any) -> DraftOptions:
    """How to draft, with the default drafter where none is named.

    Raises:
        OptionError: as `DraftOptions`; or `store` is no switch, and earlier runs are none here.

    >>> draft_options(None, None).drafter, draft_options(None, 5).label
    ('suffix', 'copyspec')
    """
    options = DraftOptions(
        drafter=default_drafter(gamma) if drafter is None else drafter,
        gamma=PAPER_GAMMA if gamma is None else gamma,
        **others,
    )
    if options.store_paths:
        raise OptionError(f"store={options.store!r} is neither True nor False")
    return options


def engine_of(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase | None,
    options: DraftOptions,
    *,
    exact: bool,
    batch_size: int,
    prefix_bytes: int = 0,
    draft_model: PreTrainedModel | None = None,
) -> Engine:
    """An engine that drafts as `options` say.

    The first one of a model, of a batch size or of options takes the time to try the model's cache
    and to measure its steps. It decodes with a copy of the model, so call this and use the engine
    within `one_at_a_time`.

    Args:
        model: in evaluation mode.
        tokenizer: the model's; exact mode needs it.
        options: how to draft; without folders of earlier runs.
        exact: whether steps are exact.
        batch_size: rows side by side.
        prefix_bytes: budget of the prefix cache, which later engines of the model share.
        draft_model: a smaller model of the same tokenizer, which `options` name.

    Raises:
        OptionError, ModelError: the options are not possible, or the model cannot be served so.
    """
    if options.tree and exact:
        raise OptionError("tree=True gives other bits than a chain; pass exact=False with it")
    if not isinstance(batch_size, int) or batch_size < 1:
        raise OptionError(f"batch_size={batch_size!r} is not a number of at least 1")
    make_drafter = drafter_factory(options)
    model, kept = _kept(model)
    choice = _cache_of(model, kept, exact, batch_size)
    if choice.reason:
        _check_model_cache(choice.reason, options, exact, batch_size)
        prefix_bytes = 0
    prefix_cache = None
    if prefix_bytes:
        prefix_cache = kept.prefix_caches.setdefault(prefix_bytes, PrefixCache(prefix_bytes))
    drafts = None
    if draft_model is not None:
        model_support.check_uncompiled(draft_model)
        draft_model = model_copy(draft_model).model
        check_cache(draft_model, "copyspec")
        drafts = DraftModel(draft_model, options.delta)
    measured = kept.measured.setdefault((options, exact), Measured())
    engines = Engines(model, tokenizer, [options], exact, choice.kind, measured)
    return engines.of(Drafting(options, make_drafter, prefix_cache, drafts), batch_size)


def has_model_cache(model: PreTrainedModel) -> bool:
    """Whether a model is served by its own attention and cache, one request at a time.

    Raises:
        ModelError: it cannot be served at all.
    """
    return bool(_cache_of(*_kept(model), exact=False, batch_size=2).reason)


def _kept(model: PreTrainedModel) -> tuple[PreTrainedModel, _Kept]:
    if model.training:
        raise ModelError("the model is in training mode; call model.eval() first")
    model_support.check_uncompiled(model)
    decoding_model, structure = model_copy(model)
    structure = structure, model.dtype, model.device
    kept = _KEPT.get(model)
    if kept is None or kept.structure != structure:
        model_support.check_config(model.config)
        kept = _KEPT[model] = _Kept(structure)
    return decoding_model, kept


def _cache_of(model: PreTrainedModel, kept: _Kept, exact: bool, batch_size: int) -> CacheChoice:
    if (exact, batch_size) not in kept.caches:
        if exact:
            model_support.check_exact(model)
        kept.caches[exact, batch_size] = choose_cache(model, exact=exact, batch_size=batch_size)
    return kept.caches[exact, batch_size]


def _check_model_cache(reason: str, options: DraftOptions, exact: bool, batch_size: int) -> None:
    remedies = {"exact=False": exact, "tree=False": options.tree, "batch_size=1": batch_size > 1}
    needed = [remedy for remedy, is_needed in remedies.items() if is_needed]
    if needed:
        raise OptionError(
            f"{reason}: its own attention and cache may serve it, one request at a time; "
            f"pass {' and '.join(needed)}"
        )
