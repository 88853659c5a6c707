"""Which models the engine can decode, and how it borrows them from transformers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy
import torch
from transformers import AutoModelForCausalLM, PreTrainedModel

from copyspec_eval.decoding import attention, experts
from copyspec_eval.decoding.cache import RowCache
from copyspec_eval.decoding.packing import packed
from copyspec_eval.errors import ModelError, RequestError
from copyspec_eval.types import Draft

REMEDY = "use --model hf for it"

_MOVING_ROPES = {"dynamic", "longrope"}
_SERVED_LAYERS = {"full_attention", "sliding_attention", "chunked_attention"}


def check_config(config: Any) -> None:
    """Refuse, before any weight is loaded, a model that the engine cannot serve.

    Args:
        config: a transformers model config.

    Raises:
        ModelError: an encoder-decoder; a model with recurrent (state-space, linear-attention)
            layers or another kind of attention; one that does not go through transformers'
            attention interface.
    """
    name = getattr(config, "model_type", type(config).__name__)
    if config.is_encoder_decoder:
        raise ModelError(f"model type {name!r} is an encoder-decoder, not decoder-only; {REMEDY}")
    model_class = _causal_lm_class(config)
    if model_class is None:
        raise ModelError(f"model type {name!r} has no causal language model; {REMEDY}")
    # A class whose layers may be recurrent can have models where none is.
    layers = set(getattr(config.get_text_config(), "layer_types", None) or ())
    if layers - _SERVED_LAYERS or (model_class._is_stateful and not layers):
        kinds = ", ".join(sorted(layers - _SERVED_LAYERS))
        what = f"layers of type {kinds}" if kinds else "a recurrent state"
        raise ModelError(
            f"model type {name!r} has {what}, not the keys and values of every position that "
            f"taking back a rejected draft needs; {REMEDY}"
        )
    interface = model_class._supports_attention_backend
    if not interface or not model_class._can_set_attn_implementation():
        raise ModelError(
            f"model type {name!r} does not use transformers' attention interface; {REMEDY}"
        )


def check_exact(model: PreTrainedModel) -> None:
    """Refuse exact mode for a mixture of experts whose shapes would depend on the drafts.

    Raises:
        ModelError: the model's experts do not go through transformers' experts interface.
    """
    if has_experts(model) and not model._can_set_experts_implementation():
        raise ModelError(
            f"model type {model.config.model_type!r} routes tokens to experts in shapes that "
            "depend on the drafts; pass exact=false (differences are then possible at near-ties)"
        )


def check_uncompiled(model: torch.nn.Module) -> None:
    """Refuse what `torch.compile` made of a model: it would compile anew for every width of a step.

    Raises:
        ModelError: the model is compiled.
    """
    if isinstance(model, torch._dynamo.OptimizedModule):
        raise ModelError("the model is wrapped by torch.compile; pass what it wraps, _orig_mod")
    if getattr(model, "_compiled_call_impl", None) is not None:
        raise ModelError("the model is compiled by its compile(); pass one that is not")


def has_experts(model: torch.nn.Module) -> bool:
    """Whether tokens are routed to experts, so that rounding can change that choice, too."""
    return any(
        "expert" in f"{name.rpartition('.')[2]} {type(module).__name__}".lower()
        or (getattr(module, "num_experts", None) or 0) > 1
        for name, module in model.named_modules()
        if name
    )


def input_device(model: PreTrainedModel) -> torch.device:
    """Where the model takes its token ids, also where accelerate keeps weights elsewhere."""
    embeddings = model.get_input_embeddings()
    hook = getattr(embeddings, "_hf_hook", None)
    device = getattr(hook, "execution_device", None)
    return torch.device(next(embeddings.parameters()).device if device is None else device)


def _causal_lm_class(config: Any) -> Any:
    return AutoModelForCausalLM._model_mapping.get(type(config), None)


def check_length(model: PreTrainedModel, length: int) -> None:
    """Refuse lengths at which a rotary embedding changes its frequencies for all positions.

    "longrope" and "dynamic" embeddings choose them by the highest position in the forward, so what
    a token sees would depend on where steps begin, and on the other rows.

    Args:
        model: the model.
        length: the highest number of positions in use, padding included.

    Raises:
        RequestError: `length` is past the one that the embedding was made for.
    """
    config = model.config.get_text_config()
    rope = getattr(config, "rope_parameters", None) or {}
    # Some models have one embedding per layer type.
    kinds = [rope] if "rope_type" in rope else [part for part in rope.values() if part]
    for kind in kinds:
        if kind.get("rope_type") in _MOVING_ROPES:
            limit = kind.get("original_max_position_embeddings") or config.max_position_embeddings
            if length > limit:
                raise RequestError(
                    f"prompt and max_gen_toks take up to {length} positions, but past {limit} "
                    f"model type {config.model_type!r} changes its {kind['rope_type']} embedding; "
                    f"lower max_gen_toks, pass max_length={limit} to cut prompts, or {REMEDY}"
                )


@contextmanager
def served(model: PreTrainedModel, exact: bool) -> Iterator[None]:
    """Run `model` with the engine's attention and packed weights, and in exact mode its experts.

    Outside, the model is as it was loaded, so that log-likelihood tasks give the numbers of
    `--model hf`.
    """
    loaded_attention = model.config._attn_implementation
    loaded_experts = model.config._experts_implementation
    switch_experts = exact and model._can_set_experts_implementation()
    model.set_attn_implementation(attention.NAME)
    if switch_experts:
        model.set_experts_implementation(experts.NAME)
    try:
        with packed(model, exact):
            yield
    finally:
        model.set_attn_implementation(loaded_attention)
        if switch_experts:
            model.set_experts_implementation(loaded_experts)


def forward(
    model: PreTrainedModel,
    cache: RowCache,
    first_row: int,
    input_ids: torch.Tensor,
    start: int | torch.Tensor,
    extent: int,
    logits_to_keep: int = 0,
    parents: Sequence[Sequence[int]] | None = None,
) -> torch.Tensor:
    """One target forward: `[rows, width]` tokens at their rows' positions, against the cache.

    Tokens of a tree are written to the cache in their order, and each attends to its ancestors
    alone, at the position that it has on its own branch.

    Args:
        model: a model within `served`.
        cache: where keys and values go; the rows written are `first_row …`.
        first_row: see above.
        input_ids: `[rows, width]`, int64.
        start: position of each row's first token, `[rows, 1]` int64, or one int for all.
        extent: how many positions of the cache are attended to, masked to each token's past.
        logits_to_keep: of how many last tokens to compute logits; 0 for all.
        parents: for trees, of each row and token the index in the step of the token before it, -1
            for the first; None if every token follows the one before.

    Returns:
        logits `[rows, width or logits_to_keep, vocabulary]`.
    """
    rows, width = input_ids.shape
    slots = (start + torch.arange(width, device=input_ids.device)).expand(rows, width)
    step = _step(slots, extent, parents)
    cache.place(first_row, slots, extent)
    with attention.masked_as(step):
        output = model(
            input_ids=input_ids,
            # Padding may lie past the last position a model has an embedding for; nobody reads it.
            position_ids=step.positions.clamp(0, _last_position(model)),
            past_key_values=cache,
            use_cache=True,
            logits_to_keep=logits_to_keep,
        )
    logits: torch.Tensor = output.logits
    return logits


def step_parents(draft: Draft, num_before: int, width: int) -> list[int]:
    """Of each token of a step, the index there of the token before it; -1 for the first.

    Args:
        draft: a chain or a tree.
        num_before: tokens of the context that are fed in front of it.
        width: of the step; padding follows the draft.

    >>> step_parents(Draft((5, 6, 7), parents=(-1, 0, -1)), num_before=2, width=6)
    [-1, 0, 1, 2, 1, 4]
    """
    if draft.parents is None:
        return list(range(-1, width - 1))
    of_draft = [num_before + parent for parent in draft.parents]
    padding = range(num_before + len(of_draft) - 1, width - 1)
    return [*range(-1, num_before - 1), *of_draft, *padding]


def _step(
    slots: torch.Tensor, extent: int, parents: Sequence[Sequence[int]] | None
) -> attention.Step:
    """Where the tokens at `slots` of the cache, `[rows, width]`, stand in their contexts."""
    keys = torch.arange(extent, device=slots.device)
    if parents is None:
        return attention.Step((keys <= slots[:, :, None])[:, None], slots, keys[None])
    rows, width = slots.shape
    ancestors = _ancestors(parents).to(slots.device)
    positions = slots[:, :1] + ancestors.sum(-1) - 1
    visible = (keys < slots[:, :1, None]).expand(rows, width, extent).clone()
    visible.scatter_(2, slots[:, None, :].expand(rows, width, width), ancestors)
    key_positions = keys.expand(rows, extent).clone().scatter_(1, slots, positions)
    return attention.Step(visible[:, None], positions, key_positions)


def _ancestors(parents: Sequence[Sequence[int]]) -> torch.Tensor:
    """Of each row, which tokens each token attends to: itself, its parent, its parent's, and so on.

    Returns:
        `[rows, width, width]`, bool.
    """
    visible = numpy.zeros((len(parents), len(parents[0]), len(parents[0])), dtype=bool)
    for row, row_parents in enumerate(parents):
        for index, parent in enumerate(row_parents):
            if parent >= 0:
                visible[row, index] = visible[row, parent]
            visible[row, index, index] = True
    return torch.from_numpy(visible)


def _last_position(model: PreTrainedModel) -> int | None:
    limit = getattr(model.config.get_text_config(), "max_position_embeddings", None)
    return None if limit is None else limit - 1
