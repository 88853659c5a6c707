"""Answers of earlier runs in the tokens of the model that is about to copy from them."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from lm_eval.models.huggingface import HFLM

from copyspec_eval.decoding.earlier_runs import (
    Asked,
    EarlierAnswer,
    EarlierAnswers,
    TokenIds,
    read_earlier,
    store_text,
)
from copyspec_eval.errors import OptionError
from copyspec_eval.harness.evaluation import output_folder
from copyspec_eval.harness.requests import Prepared

logger = logging.getLogger("lm_eval.copyspec")


def answers_of(paths: Sequence[str]) -> list[EarlierAnswer]:
    """The answers in `paths`; refuses a folder that the run under way writes to."""
    notes: list[str] = []
    answers = read_earlier(paths, notes)
    for note in notes:
        logger.warning(note)
    output = output_folder()
    for path in paths:
        place = Path(path).resolve()
        if output and output.resolve() in (place, place.parent):
            raise OptionError(
                f"store={path}: this run writes there itself; give it another --output_path"
            )
    return answers


def tokenised(answers: Iterable[EarlierAnswer], lm: HFLM, paths: Sequence[str]) -> EarlierAnswers:
    """The `answers` in `paths`, in the tokens of `lm`."""
    return EarlierAnswers(_tokenised(answers, lm, paths))


def check_asked(paths: Sequence[str], jobs: Sequence[Prepared]) -> None:
    """Refuse earlier runs, if there are any, that answered nothing of what is asked first."""
    if paths and not any(job.sequence.earlier for job in jobs):
        raise OptionError(
            f"store={store_text(paths)}: no answer to a document of "
            f"{jobs[0].asked.instance.task_name}; name a run of the same task and documents"
        )


def _tokenised(
    answers: Iterable[EarlierAnswer], lm: HFLM, paths: Sequence[str]
) -> Iterator[tuple[Asked, TokenIds]]:
    vocabulary = int(lm.model.config.get_text_config().vocab_size)
    for answer in answers:
        token_ids = _token_ids(answer, lm)
        if max(token_ids, default=0) >= vocabulary:
            raise OptionError(
                f"store={store_text(paths)}: token {max(token_ids)} of document "
                f"{answer.asked.document} is none of the model's; name traces of its own tokenizer"
            )
        yield answer.asked, token_ids


def _token_ids(answer: EarlierAnswer, lm: HFLM) -> TokenIds:
    """Those of the record, if they mean the same to `lm`; else of the text."""
    token_ids, text = answer.token_ids, answer.text
    if token_ids is not None:
        is_trace = answer.whole_text is None
        if is_trace or _decoded(token_ids, lm) == answer.whole_text:
            return token_ids
    encoded: list[int] = lm.tok_encode(text or "", add_special_tokens=False)
    return [*encoded, lm.eot_token_id] if answer.has_eos else encoded


def _decoded(token_ids: TokenIds, lm: HFLM) -> str | None:
    try:
        text: str = lm.tok_decode(list(token_ids), skip_special_tokens=False)
    except (IndexError, OverflowError, TypeError):  # ids beyond a slow tokenizer's
        return None
    return text
