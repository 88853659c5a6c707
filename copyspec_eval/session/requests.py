"""From a prompt's tokens and generation settings to what an engine answers."""

from __future__ import annotations

from collections import abc
from collections.abc import Callable, Collection, Mapping
from typing import Any, cast

from transformers import GenerationConfig, LogitsProcessorList, PreTrainedModel
from transformers.generation.configuration_utils import GenerationMode

from copyspec_eval.decoding.choosing import TokenChooser
from copyspec_eval.decoding.model_support import input_device
from copyspec_eval.decoding.random_numbers import RequestSeeds
from copyspec_eval.decoding.sequence import Sequence
from copyspec_eval.decoding.stopping import StopRule
from copyspec_eval.errors import RequestError


class SequenceBuilder:
    """Builds an engine's requests as `model.generate` would read them.

    `decode` gives the text of token ids, special tokens included; `eos_ids` end an answer besides
    those of its settings.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        pad_token_id: int | None,
        decode: Callable[[abc.Sequence[int]], str],
        eos_ids: Collection[int] = (),
    ) -> None:
        self._model = model
        self._pad_token_id = pad_token_id
        self._decode = decode
        self._eos_ids = set(eos_ids)
        self._seeds = RequestSeeds()

    def build(
        self,
        prompt_ids: abc.Sequence[int],
        settings: Mapping[str, Any],
        max_new_tokens: int,
        stops: abc.Sequence[str],
        seed: int,
        *,
        named: str = "",
        **others: Any,
    ) -> tuple[Sequence, LogitsProcessorList]:
        """A request, not begun, and its logits processors.

        Args:
            prompt_ids: of the prompt, at least one.
            settings: of `GenerationConfig`, over the model's own.
            max_new_tokens: the budget.
            stops: texts that end the answer.
            seed: the user's; every request gets one of its own from it.
            named: what goes before the settings in an error.
            **others: as of `Sequence`.
        """
        try:
            config, unknown = self._prepared(settings)
            if unknown:
                raise RequestError(
                    f"unknown generation setting {', '.join(sorted(unknown))}; "
                    "see transformers.GenerationConfig for those that exist"
                )
            check_mode(config)
            processors = self._processors(config, len(prompt_ids), max_new_tokens)
        except (TypeError, ValueError) as error:
            reason = " ".join(str(error).split())
            raise RequestError(f"{named}{settings} are not possible: {reason}") from error
        chooser = TokenChooser(processors, bool(config.do_sample), self._seeds.of(seed, prompt_ids))
        rule = self.stop_rule(max_new_tokens, config.eos_token_id, stops)
        return Sequence(prompt_ids, rule, chooser, **others), processors

    def stop_rule(
        self, max_new_tokens: int, eos_token_id: int | list[int] | None, stops: abc.Sequence[str]
    ) -> StopRule:
        ids = [eos_token_id] if isinstance(eos_token_id, int) else eos_token_id or ()
        return StopRule(max_new_tokens, self._eos_ids.union(ids), stops, self._decode)

    def processors(self, settings: Mapping[str, Any], max_new_tokens: int) -> LogitsProcessorList:
        """Those of `model.generate`, in modes that are not served as well."""
        return self._processors(self._prepared(settings)[0], 1, max_new_tokens)

    def _prepared(self, settings: Mapping[str, Any]) -> tuple[GenerationConfig, dict[str, Any]]:
        """What `model.generate` makes of settings, and those that it does not know."""
        prepared: tuple[GenerationConfig, dict[str, Any]] = cast(
            Any, self._model
        )._prepare_generation_config(None, **settings, pad_token_id=self._pad_token_id)
        return prepared

    def _processors(
        self, config: GenerationConfig, num_prompt_tokens: int, max_new_tokens: int
    ) -> LogitsProcessorList:
        device = input_device(self._model)
        config.max_length = num_prompt_tokens + max_new_tokens
        generator = cast(Any, self._model)
        generator._prepare_special_tokens(config, True, device=device)
        processors: LogitsProcessorList = generator._get_logits_processor(
            config, input_ids_seq_length=num_prompt_tokens, device=device
        )
        return processors


def check_mode(config: GenerationConfig) -> None:
    """Accept greedy decoding, and sampling of one sequence."""
    if config.cache_implementation == "quantized":
        raise RequestError("cache_implementation='quantized' is not served; leave it out")
    mode = config.get_generation_mode()
    served = (GenerationMode.GREEDY_SEARCH, GenerationMode.SAMPLE)
    if mode not in served or (config.guidance_scale or 1) != 1:
        raise RequestError(
            f"the generation settings ask for {mode.value.replace('_', ' ')} or guidance, but "
            "copyspec decodes greedily or samples one sequence; use transformers' own generate "
            "(--model hf) for anything else"
        )
