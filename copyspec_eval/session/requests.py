"""From a prompt's tokens and generation settings to what an engine answers."""

import hashlib
from collections import Counter, abc
from dataclasses import dataclass, field
from typing import Any

from transformers import GenerationConfig, LogitsProcessorList, PreTrainedModel
from transformers.generation.configuration_utils import GenerationMode

from copyspec_eval.decoding.choosing import TokenChooser
from copyspec_eval.decoding.model_support import input_device
from copyspec_eval.decoding.sequence import Sequence
from copyspec_eval.decoding.stopping import StopRule
from copyspec_eval.errors import RequestError, suggestion


@dataclass
class SequenceBuilder:
    """Builds an engine's requests as `model.generate` would read them."""

    pad_token_id: int | None
    decode: abc.Callable[[abc.Sequence[int]], str]  # with special tokens
    eos_ids: abc.Collection[int] = ()  # besides the model's own
    _times_asked: Counter[bytes] = field(default_factory=Counter, init=False)

    def build(
        self,
        model: PreTrainedModel,
        prompt_ids: abc.Sequence[int],
        settings: abc.Mapping[str, Any],
        max_new_tokens: int,
        stops: abc.Sequence[str],
        seed: int,
        *,
        named: str = "",
        **others: Any,
    ) -> Sequence:
        """A request with `others` of `Sequence`; errors name the `settings` after `named`."""
        try:
            config, processors = self.prepared(model, settings, len(prompt_ids), max_new_tokens)
        except (TypeError, ValueError) as error:
            reason = " ".join(str(error).split())
            raise RequestError(f"{named}{settings} are invalid: {reason}") from error
        seed = self._request_seed(seed, prompt_ids)
        chooser = TokenChooser(processors, bool(config.do_sample), seed)
        rule = self.stop_rule(max_new_tokens, config.eos_token_id, stops)
        return Sequence(prompt_ids, rule, chooser, **others)

    def _request_seed(self, seed: int, prompt_ids: abc.Sequence[int]) -> int:
        """Made of the user's seed, the prompt, and how often it was asked before."""
        asked = hashlib.sha256(f"{seed}:{tuple(prompt_ids)}".encode())
        key = asked.digest()
        self._times_asked[key] += 1
        asked.update(f":{self._times_asked[key]}".encode())
        return int.from_bytes(asked.digest()[:8], "big", signed=True)

    def stop_rule(
        self, max_new_tokens: int, eos_token_id: int | list[int] | None, stops: abc.Sequence[str]
    ) -> StopRule:
        ids = [eos_token_id] if isinstance(eos_token_id, int) else eos_token_id or ()
        return StopRule(max_new_tokens, {*self.eos_ids, *ids}, stops, self.decode)

    def prepared(
        self,
        model: Any,
        settings: abc.Mapping[str, Any],
        num_prompt_tokens: int,
        max_new_tokens: int,
        *,
        is_checked: bool = True,
    ) -> tuple[GenerationConfig, LogitsProcessorList]:
        """`model.generate`'s config and processors; unchecked, those of any mode."""
        settings = {**settings, "pad_token_id": self.pad_token_id}
        config, unknown = model._prepare_generation_config(None, **settings)
        if is_checked and unknown:
            name, known = min(unknown), {"max_new_tokens", *config.to_dict()}
            raise RequestError(
                f"unknown generation setting {name!r}{suggestion(name, known)}; "
                "see transformers.GenerationConfig"
            )
        if is_checked:
            check_mode(config)
        device = input_device(model)
        config.max_length = num_prompt_tokens + max_new_tokens
        model._prepare_special_tokens(config, True, device=device)
        row: Any = {"input_ids_seq_length": num_prompt_tokens, "device": device}
        return config, model._get_logits_processor(config, **row)


def check_mode(config: GenerationConfig) -> None:
    if config.cache_implementation == "quantized":
        raise RequestError("cache_implementation='quantized' is not supported; leave it out")
    mode = config.get_generation_mode()
    served = (GenerationMode.GREEDY_SEARCH, GenerationMode.SAMPLE)
    if mode not in served or (config.guidance_scale or 1) != 1:
        raise RequestError(
            f"the generation settings ask for {mode.value.replace('_', ' ')} or guidance, but "
            "copyspec decodes greedily or samples one sequence; leave those settings out"
        )
