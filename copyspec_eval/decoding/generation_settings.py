"""Generation settings as `model.generate` reads them, and which of them are served."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

from transformers import GenerationConfig, LogitsProcessorList, PreTrainedModel
from transformers.generation.configuration_utils import GenerationMode

from copyspec_eval.decoding.model_support import input_device
from copyspec_eval.errors import RequestError

_SERVED_MODES = (GenerationMode.GREEDY_SEARCH, GenerationMode.SAMPLE)


def prepared_config(
    model: PreTrainedModel, settings: Mapping[str, Any], pad_token_id: int | None
) -> tuple[GenerationConfig, dict[str, Any]]:
    """What `model.generate` makes of settings over the model's own, and those it does not know.

    Raises:
        TypeError, ValueError: a value is not possible.
    """
    prepared: tuple[GenerationConfig, dict[str, Any]] = cast(Any, model)._prepare_generation_config(
        None, **settings, pad_token_id=pad_token_id
    )
    return prepared


def served_config(
    model: PreTrainedModel, settings: Mapping[str, Any], pad_token_id: int | None
) -> GenerationConfig:
    """The configuration that settings come to.

    Raises:
        RequestError: a setting does not exist, or asks for what is not served.
        TypeError, ValueError: as `prepared_config`.
    """
    config, unknown = prepared_config(model, settings, pad_token_id)
    if unknown:
        raise RequestError(
            f"unknown generation setting {', '.join(sorted(unknown))}; "
            "see transformers.GenerationConfig for those that exist"
        )
    check_mode(config)
    return config


def check_mode(config: GenerationConfig) -> None:
    """Accept greedy decoding, and sampling of one sequence.

    Raises:
        RequestError: anything else is asked for, or a cache that changes answers.
    """
    if config.cache_implementation == "quantized":
        raise RequestError("cache_implementation='quantized' is not served; leave it out")
    mode = config.get_generation_mode()
    if mode not in _SERVED_MODES or (config.guidance_scale or 1) != 1:
        raise RequestError(
            f"the generation settings ask for {mode.value.replace('_', ' ')} or guidance, but "
            "copyspec decodes greedily or samples one sequence; use transformers' own generate "
            "(--model hf) for anything else"
        )


def logits_processors(
    model: PreTrainedModel, config: GenerationConfig, num_prompt_tokens: int, max_new_tokens: int
) -> LogitsProcessorList:
    """The processors that `model.generate` applies; `config` gets the length they go by.

    Raises:
        TypeError, ValueError: a setting's value is not possible.
    """
    device = input_device(model)
    config.max_length = num_prompt_tokens + max_new_tokens
    generator = cast(Any, model)
    generator._prepare_special_tokens(config, True, device=device)
    processors: LogitsProcessorList = generator._get_logits_processor(
        config, input_ids_seq_length=num_prompt_tokens, device=device
    )
    return processors


def as_ids(eos_token_id: int | list[int] | None) -> set[int]:
    """The ids of a config's EOS tokens.

    >>> as_ids(None), as_ids(2), sorted(as_ids([2, 7]))
    (set(), {2}, [2, 7])
    """
    if eos_token_id is None:
        return set()
    return {eos_token_id} if isinstance(eos_token_id, int) else set(eos_token_id)
