"""From lm-eval's instances to the engine's sequences: tokens, stops, generation settings."""

from __future__ import annotations

import operator
from collections import abc
from dataclasses import dataclass
from typing import Any

import torch
from lm_eval.api.instance import Instance
from lm_eval.models.huggingface import HFLM
from lm_eval.models.utils import handle_stop_sequences, normalize_gen_kwargs
from transformers import LogitsProcessorList

from copyspec_eval.decoding.earlier_runs import EarlierAnswers
from copyspec_eval.decoding.sequence import Sequence
from copyspec_eval.decoding.stopping import StopRule
from copyspec_eval.errors import RequestError
from copyspec_eval.harness.evaluation import document_number
from copyspec_eval.harness.recorder import Asked
from copyspec_eval.session.requests import SequenceBuilder

# Settings that would be taken and then not be followed.
_INSTEAD = {
    "max_length": "max_gen_toks",
    "max_time": "max_gen_toks",
    "num_return_sequences": "the task's repeats",
    "stop_strings": "until",
}


@dataclass(frozen=True, slots=True)
class Prepared:
    """One answer that lm-eval asked for, ready for the engine.

    Attributes:
        asked: what lm-eval asked.
        until: stop strings as lm-eval cuts them off the answer, EOS text included.
        sequence: the engine's side, not begun.
        processors: names of the logits processors in force.
    """

    asked: Asked
    until: list[str]
    sequence: Sequence
    processors: list[str]


class RequestBuilder:
    """Builds requests as `HFLM.generate_until` and `model.generate` would read them."""

    def __init__(self, lm: HFLM, earlier: EarlierAnswers | None = None) -> None:
        self._lm = lm
        self._earlier = earlier or EarlierAnswers()
        self._builder = SequenceBuilder(
            lm.model,
            lm.tokenizer.pad_token_id,
            lambda token_ids: str(lm.tok_decode(list(token_ids), skip_special_tokens=False)),
            [lm.eot_token_id],
        )

    def build(self, instance: Instance, repeat: int) -> Prepared:
        context, gen_kwargs = instance.args
        task, named = (
            instance.task_name or "",
            f"document {instance.doc_id} of {instance.task_name}",
        )
        _check_whole(str(context), f"{named}: its prompt")
        settings, until, max_gen_toks = self._read(gen_kwargs)
        prompt_ids = self._encode(context, max_gen_toks)
        for name in settings.keys() & _INSTEAD.keys():
            raise RequestError(f"gen_kwargs have {name}; use {_INSTEAD[name]} instead")
        document, turn = document_number(task, instance.doc_id), getattr(instance, "turn", 1)
        sequence, processors = self._builder.build(
            prompt_ids,
            settings,
            max_gen_toks,
            self._stops(until),
            torch.initial_seed(),
            named="gen_kwargs ",
            earlier=self._earlier.to(task, document, turn),
        )
        return Prepared(Asked(instance, repeat, context), until, sequence, _names(processors))

    def stop_rule(
        self, until: list[str], max_gen_toks: int, eos_token_id: int | list[int] | None
    ) -> StopRule:
        return self._builder.stop_rule(max_gen_toks, eos_token_id, self._stops(until))

    def processors(self, gen_kwargs: dict[str, Any]) -> list[str]:
        """Names of the logits processors that `model.generate` applies, in modes not served too."""
        settings, _, max_gen_toks = self._read(gen_kwargs)
        return _names(self._builder.processors(settings, max_gen_toks))

    def _stops(self, until: list[str]) -> list[str]:
        """The EOS text among `until` is known by its id."""
        return [text for text in until if text and text != self._eos_text]

    @property
    def _eos_text(self) -> str:
        text: str = self._lm.tok_decode(self._lm.eot_token_id, skip_special_tokens=False)
        return text

    def _read(self, gen_kwargs: dict[str, Any]) -> tuple[dict[str, Any], list[str], int]:
        """The settings of `model.generate`, the stop strings and the budget."""
        _check_until(gen_kwargs)
        try:
            settings = dict(normalize_gen_kwargs(gen_kwargs, self._lm.max_gen_toks))
            settings["max_gen_toks"] = operator.index(settings["max_gen_toks"])
        except (OverflowError, TypeError, ValueError) as error:
            raise RequestError(f"gen_kwargs {gen_kwargs} are not possible: {error}") from error
        until = handle_stop_sequences(settings.pop("until"), eos=self._eos_text)
        max_gen_toks = settings.pop("max_gen_toks")
        if not settings.get("do_sample"):
            settings.pop("temperature", None)
        return settings, until, max_gen_toks

    def _encode(self, context: str, max_gen_toks: int) -> tuple[int, ...]:
        limit = self._lm.max_length - max_gen_toks
        if max_gen_toks < 1 or limit < 1:
            raise RequestError(
                f"max_gen_toks={max_gen_toks} does not leave room for a prompt in the model's "
                f"context of {self._lm.max_length} tokens; pass --gen_kwargs max_gen_toks=N with "
                f"0 < N < {self._lm.max_length}"
            )
        ids, _ = self._lm.tok_batch_encode(
            [context], left_truncate_len=limit, truncation=self._lm.truncation
        )
        # lm-eval warns of a truncation itself. An empty prompt still needs a token to start from.
        return tuple(ids[0].tolist()) or (self._lm.prefix_token_id,)


def _check_whole(text: str, named: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise RequestError(
            f"{named} has half a character ({error.object[error.start]!a}), which no tokenizer "
            "reads; correct it"
        ) from error


def _check_until(gen_kwargs: abc.Mapping[str, Any]) -> None:
    until = gen_kwargs.get("until", [])
    texts = [until] if isinstance(until, str) else until
    if not isinstance(texts, list | tuple) or not all(isinstance(text, str) for text in texts):
        raise RequestError(f"until={until!r} is neither a text nor a list of texts")
    for text in texts:
        _check_whole(text, f"until={text!r}")


def _names(processors: LogitsProcessorList) -> list[str]:
    return [type(processor).__name__ for processor in processors]
