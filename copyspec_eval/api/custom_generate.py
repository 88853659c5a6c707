"""For transformers: `model.generate(…, custom_generate=copyspec_eval.custom_generate)`.

transformers does all of its preparation and hands over a decoding loop. This one decodes with
drafts and gives what its own would: the same sequences, random numbers included.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch.nn.utils.rnn import pad_sequence
from transformers import (
    GenerationConfig,
    LogitsProcessorList,
    PreTrainedModel,
    StoppingCriteriaList,
)
from transformers.generation.utils import GenerateDecoderOnlyOutput

from copyspec_eval.api.generation import Streamer, put_to, python_options
from copyspec_eval.api.rows import CriteriaRule, MultinomialReplay, RowProcessor
from copyspec_eval.decoding.choosing import TokenChooser
from copyspec_eval.decoding.model_copy import one_at_a_time
from copyspec_eval.decoding.sequence import Sequence as Request
from copyspec_eval.drafters.registry import drafter_factory
from copyspec_eval.errors import RequestError
from copyspec_eval.session.requests import check_mode
from copyspec_eval.session.session import Arm, Session

_KNOWN = {
    *("attention_mask", "position_ids", "past_key_values", "cache_params"),
    # What transformers prepares for its own forwards.
    *("cache_position", "logits_to_keep", "use_cache"),
}


def custom_generate(
    model: PreTrainedModel,
    input_ids: torch.Tensor,
    logits_processor: LogitsProcessorList,
    stopping_criteria: StoppingCriteriaList,
    generation_config: GenerationConfig,
    synced_gpus: bool = False,
    streamer: Streamer | None = None,
    drafter: str | None = None,
    gamma: int | None = None,
    num_draft_tokens: int | None = None,
    store: bool = False,
    tree: bool = False,
    recycle: bool = False,
    **model_kwargs: Any,
) -> GenerateDecoderOnlyOutput | torch.Tensor:
    """Decode as `model.generate` does, greedily or by sampling, with drafts.

    Pass it to `generate`: `model.generate(**inputs, custom_generate=copyspec_eval.custom_generate,
    gamma=3)`.

    The sequences are those of plain `generate`, and sampling takes the same random numbers from
    torch's generator, unless rounding decides between two nearly equal logits: a forward of several
    tokens rounds differently from a forward of one. Scores and logits of a row that has ended are
    zeros.

    Args:
        model, logits_processor, generation_config, synced_gpus: transformers'.
        input_ids: `[rows, tokens]`, padded on the left.
        stopping_criteria: transformers'; other than of lengths and EOS for a single row only.
        streamer: gets a single row's tokens as they come.
        drafter, gamma, num_draft_tokens, store, tree, recycle: as in `copyspec_eval.generate`.
        **model_kwargs: what transformers prepared for the model's forward.

    Returns:
        `[rows, tokens]`, prompts included and padded on the right; with `return_dict_in_generate`
        an output without attentions, hidden states and cache.

    Raises:
        RequestError, OptionError, ModelError: something is asked for that is not served.
    """
    check_mode(generation_config)
    for name in ("output_attentions", "output_hidden_states"):
        if getattr(generation_config, name) and generation_config.return_dict_in_generate:
            raise RequestError(f"{name}=True is not served; leave custom_generate out for it")
    # `generate` does not pass all of its arguments on to a callable.
    caller = sys._getframe(1)
    arguments = caller.f_locals if caller.f_code.co_name == "generate" else {}
    _check_inputs({**model_kwargs, "assistant_model": arguments.get("assistant_model")})
    prompts = _prompts(input_ids, model_kwargs.get("attention_mask"))
    _check_positions(model_kwargs.get("position_ids"), prompts)
    streamer = streamer or arguments.get("streamer")
    if streamer is not None and len(prompts) > 1:
        raise RequestError(f"streamer is for one prompt; input_ids have {len(prompts)}")
    switches = {"store": store, "tree": tree, "recycle": recycle}
    options = python_options(drafter, gamma, False, num_draft_tokens=num_draft_tokens, **switches)
    replay = None
    if generation_config.do_sample:
        replay = MultinomialReplay(len(prompts), input_ids.device)
    keeps = generation_config.return_dict_in_generate and bool(
        generation_config.output_scores or generation_config.output_logits
    )
    processors = [
        RowProcessor(logits_processor, input_ids[:, : input_ids.shape[1] - len(prompt)], row, keeps)
        for row, prompt in enumerate(prompts)
    ]
    requests = [
        Request(
            prompt,
            CriteriaRule(
                stopping_criteria,
                input_ids,
                processors[row].scores if keeps and generation_config.output_scores else None,
            ),
            TokenChooser(
                LogitsProcessorList([processors[row]] if logits_processor or keeps else []),
                do_sample=False,
                draw=replay.draw_for(row) if replay else None,
            ),
            on_commit=put_to(streamer),
        )
        for row, prompt in enumerate(prompts)
    ]
    with one_at_a_time(model):
        arm = Arm(options, drafter_factory(options))
        rows = len(prompts)
        session = Session(model, None, [options], exact=False, rows=rows, needs_rows=False)
        engine = session.engine(arm, 1 if session.reason else rows)
        outputs = [generation.token_ids for generation in engine.generate(requests)]
    if replay is not None:
        replay.rewind(max(map(len, outputs)))
    if streamer is not None:
        streamer.end()
    return _output(input_ids, outputs, processors, generation_config)


def _check_inputs(model_kwargs: Mapping[str, Any]) -> None:
    for name, value in model_kwargs.items():
        if name not in _KNOWN and value is not None:
            raise RequestError(f"{name} is not read by copyspec; leave custom_generate out for it")
    for name in ("past_key_values", "cache_params"):
        cache = model_kwargs.get(name)
        if cache is not None and hasattr(cache, "get_seq_length") and cache.get_seq_length():
            raise RequestError(
                f"{name} holds tokens already, and copyspec begins with the prompt; leave it out"
            )


def _prompts(input_ids: torch.Tensor, mask: torch.Tensor | None) -> list[list[int]]:
    """Each row's tokens without the padding on their left."""
    if not input_ids.numel():
        raise RequestError("input_ids are empty; copyspec begins with a prompt of at least a token")
    if mask is None:
        return input_ids.tolist()
    if mask.shape != input_ids.shape:
        raise RequestError(
            f"attention_mask has the shape {tuple(mask.shape)}, and input_ids have "
            f"{tuple(input_ids.shape)}; pass a mask value for each token"
        )
    others = mask[(mask != 0) & (mask != 1)]
    if others.numel():
        raise RequestError(
            f"attention_mask holds {others[0].item()}; use 1 for a token and 0 for padding"
        )
    is_token = mask.bool()
    for number, length in enumerate(is_token.sum(-1).tolist()):
        if not length:
            raise RequestError(f"row {number} of attention_mask has no token; leave the row out")
        if not is_token[number, -length:].all():
            raise RequestError("attention_mask has zeros behind a token; pad prompts on the left")
    return [row[tokens].tolist() for row, tokens in zip(input_ids, is_token, strict=True)]


def _check_positions(position_ids: torch.Tensor | None, prompts: Sequence[Sequence[int]]) -> None:
    """Accept positions, `[…, rows or 1, columns]`, that count each row's tokens from 0."""
    if position_ids is None:
        return
    num_columns, device = position_ids.shape[-1], position_ids.device
    lengths = torch.tensor(list(map(len, prompts)), device=device)
    counted = torch.arange(-num_columns, 0, device=device) + lengths[:, None]
    if num_columns < max(lengths) or not ((position_ids == counted) | (counted < 0)).all():
        raise RequestError(
            "position_ids do not count each prompt's tokens from 0; leave them out, or "
            "custom_generate"
        )


def _output(
    input_ids: torch.Tensor,
    outputs: Sequence[tuple[int, ...]],
    processors: Sequence[RowProcessor],
    config: GenerationConfig,
) -> GenerateDecoderOnlyOutput | torch.Tensor:
    lengths = list(map(len, outputs))
    token = 0 if config._pad_token_tensor is None else int(config._pad_token_tensor)
    tokens = pad_sequence(list(map(input_ids.new_tensor, outputs)), True, token)
    sequences = torch.cat([input_ids, tokens], dim=-1)
    if not config.return_dict_in_generate:
        return sequences

    def steps(rows: Iterable[list[torch.Tensor]]) -> tuple[torch.Tensor, ...]:
        """`[rows, vocabulary]` of every step, from each row's `[vocabulary]` of its own steps."""
        return tuple(
            pad_sequence([torch.stack(row[:n]) for row, n in zip(rows, lengths, strict=True)])
        )

    output: Any = GenerateDecoderOnlyOutput
    return output(  # type: ignore[no-any-return]
        sequences=sequences,
        scores=steps(each.scores for each in processors) if config.output_scores else None,
        logits=steps(each.logits for each in processors) if config.output_logits else None,
    )
