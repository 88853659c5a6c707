"""From lm-eval's instances to the engine's sequences: tokens, stops, generation settings."""

import operator
from collections import abc
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
from lm_eval.models.huggingface import HFLM
from lm_eval.models.utils import handle_stop_sequences, normalize_gen_kwargs

from copyspec_eval.decoding.sequence import Sequence
from copyspec_eval.decoding.stopping import StopRule
from copyspec_eval.drafters.registry import store_text
from copyspec_eval.errors import OptionError, RequestError
from copyspec_eval.harness.evaluation import document_number, output_folder
from copyspec_eval.harness.recorder import Asked, logger
from copyspec_eval.reports import earlier_runs
from copyspec_eval.session.requests import SequenceBuilder

# Settings that would be accepted and then ignored.
_INSTEAD = dict.fromkeys(("max_length", "max_time"), "max_gen_toks")
_INSTEAD |= {"num_return_sequences": "the task's repeats", "stop_strings": "until"}


class Prepared(NamedTuple):
    asked: Asked
    until: list[str]  # the stop strings, with the EOS text
    sequence: Sequence


class RequestBuilder(SequenceBuilder):
    """Builds requests as `HFLM.generate_until` and `model.generate` would read them."""

    def __init__(self, lm: HFLM, earlier: earlier_runs.EarlierAnswers | None = None) -> None:
        decode = partial(lm.tok_decode, skip_special_tokens=False)
        super().__init__(lm.tokenizer.pad_token_id, decode, [lm.eot_token_id])
        self._lm, self._earlier = lm, earlier or earlier_runs.EarlierAnswers()
        self._eos_text = str(lm.tok_decode(lm.eot_token_id, skip_special_tokens=False))

    def prepare(self, asked: Asked) -> Prepared:
        instance, task = asked.instance, asked.instance.task_name or ""
        _check_whole(asked.prompt, f"document {instance.doc_id} of {task}: its prompt")
        settings, until, max_gen_toks = self._read(asked.settings)
        prompt_ids = self._encode(asked.prompt, max_gen_toks)
        for name in settings.keys() & _INSTEAD.keys():
            raise RequestError(f"{name} in gen_kwargs is not supported; use {_INSTEAD[name]}")
        document = document_number(task, instance.doc_id)
        earlier = self._earlier.to(task, document, getattr(instance, "turn", 1))
        request = (self._lm.model, prompt_ids, settings, max_gen_toks, until, torch.initial_seed())
        sequence = self.build(*request, named="gen_kwargs ", earlier=earlier)
        return Prepared(asked, until, sequence)

    def stop_rule(
        self, max_new_tokens: int, eos_token_id: int | list[int] | None, stops: abc.Sequence[str]
    ) -> StopRule:
        """As `SequenceBuilder`'s; the EOS text, which lm-eval adds, is known by its id."""
        stops = [text for text in stops if text and text != self._eos_text]
        return super().stop_rule(max_new_tokens, eos_token_id, stops)

    def processor_names(self, gen_kwargs: dict[str, Any]) -> list[str]:
        """Names of `model.generate`'s logits processors, also in modes that are not supported."""
        settings, _, max_gen_toks = self._read(gen_kwargs)
        _, processors = self.prepared(self._lm.model, settings, 1, max_gen_toks, is_checked=False)
        return sorted({type(processor).__name__ for processor in processors})

    def _read(self, gen_kwargs: dict[str, Any]) -> tuple[dict[str, Any], list[str], int]:
        given = gen_kwargs.get("until", [])
        texts = [given] if isinstance(given, str) else given
        if not isinstance(texts, list | tuple) or not all(isinstance(text, str) for text in texts):
            raise RequestError(f"until={given!r} is neither a text nor a list of texts")
        for text in texts:
            _check_whole(text, f"until={text!r}")
        try:
            settings = dict(normalize_gen_kwargs(gen_kwargs, self._lm.max_gen_toks))
            max_gen_toks = operator.index(settings.pop("max_gen_toks"))
        except (OverflowError, TypeError, ValueError) as error:
            raise RequestError(f"gen_kwargs {gen_kwargs} are invalid: {error}") from error
        until = handle_stop_sequences(settings.pop("until"), eos=self._eos_text)
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
        how = {"left_truncate_len": limit, "truncation": self._lm.truncation}
        ids, _ = self._lm.tok_batch_encode([context], **how)
        # lm-eval warns of a truncation. An empty prompt still needs a token to start from.
        return tuple(ids[0].tolist()) or (self._lm.prefix_token_id,)


def _check_whole(text: str, named: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise RequestError(
            f"{named} has a lone surrogate ({error.object[error.start]!a}), which tokenizers "
            "cannot encode; remove it"
        ) from error


def earlier_answers(paths: abc.Sequence[str]) -> list[earlier_runs.EarlierAnswer]:
    """The answers in `paths`; refuses a folder that the run under way writes to."""
    notes, output = list[str](), output_folder()
    answers = earlier_runs.read_earlier(paths, notes)
    for note in notes:
        logger.warning(note)
    for path in paths:
        place = Path(path).resolve()
        if output and output.resolve() in (place, place.parent):
            raise OptionError(f"store={path}: this run writes there; give it another --output_path")
    return answers


def tokenised(
    answers: abc.Iterable[earlier_runs.EarlierAnswer], lm: HFLM, paths: abc.Sequence[str]
) -> abc.Iterator[tuple[earlier_runs.RequestId, earlier_runs.TokenIds]]:
    """The `answers` in `paths`, in the tokens of `lm`: the recorded ones if they mean the same."""
    vocabulary = int(lm.model.config.get_text_config().vocab_size)
    for answer in answers:
        token_ids, is_trace = answer.token_ids, answer.whole_text is None
        if token_ids is None or not (is_trace or _decoded(token_ids, lm) == answer.whole_text):
            encoded: list[int] = lm.tok_encode(answer.text or "", add_special_tokens=False)
            token_ids = [*encoded, lm.eot_token_id] if answer.has_eos else encoded
        if max(token_ids, default=0) >= vocabulary:
            raise OptionError(
                f"store={store_text(paths)}: token {max(token_ids)} of document "
                f"{answer.request.document} is not in the vocabulary; name traces of this tokenizer"
            )
        yield answer.request, token_ids


def _decoded(token_ids: earlier_runs.TokenIds, lm: HFLM) -> str | None:
    try:
        return str(lm.tok_decode(list(token_ids), skip_special_tokens=False))
    except (IndexError, OverflowError, TypeError):  # ids beyond a slow tokenizer's
        return None
