"""`compare --rescore`: ask the model whether rounding explains where two runs' answers part."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

import torch
from lm_eval.api.instance import Instance
from lm_eval.models.utils import postprocess_generated_text

from copyspec_eval.decoding.differences import Rescored, Rescorer
from copyspec_eval.decoding.engine import Engine
from copyspec_eval.drafters.base import NoDrafter
from copyspec_eval.harness.lm import CopySpecLM
from copyspec_eval.harness.requests import Prepared, RequestBuilder
from copyspec_eval.reports.equivalence import Pair
from copyspec_eval.reports.runs import Answer
from copyspec_eval.types import Difference

# How to decode, not what: settings of assisted generation that leave the choice of a token alone.
_ASSISTED = {"prompt_lookup_num_tokens", "max_matching_ngram_size"}

_NUM_DRAFT_TOKENS = 10
_NUM_ALTERNATIVES = 64
"""How many of the likeliest tokens to try as the one that an answer known as text goes on with."""

_BYTES_PER_CHARACTER = 4
"""So many tokens, at most, pass before a difference shows in the text."""


def rescore(pairs: Sequence[Pair], pretrained: str, dtypes: Iterable[str]) -> list[Pair]:
    """`pairs`, those that differ with a `Difference` and, where rounding explains it, as near-ties.

    The model reads each prompt and the common part of both answers; see `Rescorer`. Where an answer
    is known as text only, the tokens that it may have come from are tried, likeliest first. Answers
    that were sampled, or whose prompt was not logged, stay as they are.

    Args:
        pairs: as `compare_answers` gives them.
        pretrained: the model that gave the answers.
        dtypes: the runs', such as "torch.bfloat16"; the coarsest is taken, without any the
            checkpoint's own.

    Raises:
        ModelError, OptionError: the model cannot be loaded or served.
    """
    asked = [pair for pair in pairs if pair.status == "diverged" and _can_be_asked(pair)]
    if not asked:
        return list(pairs)
    judge = _Judge(pretrained, _coarsest(dtypes))
    judged = {pair.key: judge.judge(pair) for pair in asked}
    return [judged.get(pair.key, pair) for pair in pairs]


def _coarsest(dtypes: Iterable[str]) -> str:
    names = [dtype.removeprefix("torch.") for dtype in dtypes]
    return max(names, key=lambda name: torch.finfo(getattr(torch, name)).eps, default="auto")


def _can_be_asked(pair: Pair) -> bool:
    sides = [answer for answer in (pair.a, pair.b) if answer is not None]
    return all(answer.prompt is not None and not answer.sampled for answer in sides)


@dataclass(frozen=True, slots=True)
class _Known:
    """An answer as tokens, A's or B's, beside the other one as text."""

    token_ids: tuple[int, ...]
    other_text: str
    is_b: bool


class _Judge:
    """A loaded model that tells near-ties from divergences."""

    def __init__(self, pretrained: str, dtype: str) -> None:
        self._lm = CopySpecLM(pretrained, drafter="none", exact=False, dtype=dtype)
        plain, wide = (
            Engine(self._lm.model, NoDrafter, num_draft_tokens=count, exact=False)
            for count in (0, _NUM_DRAFT_TOKENS)
        )
        self._rescorer = Rescorer(self._lm.model, plain, wide)
        self._builder = RequestBuilder(self._lm)

    def judge(self, pair: Pair) -> Pair:
        """The pair with what the model says of it."""
        assert pair.a is not None, "only answers with the same prompt differ"
        assert pair.b is not None
        job = self._prepare(pair.a)
        if pair.level == "tokens" and pair.a.token_ids and pair.b.token_ids:
            found = self._rescorer.explain(job.request, pair.b.token_ids, pair.a.token_ids)
        else:
            found = self._explain_text(job, pair.a, pair.b)
        if found is None:
            return pair
        return replace(pair, status=found.agreement, difference=found)

    def _prepare(self, answer: Answer) -> Prepared:
        settings = {k: v for k, v in answer.gen_kwargs.items() if k not in _ASSISTED}
        instance = Instance("generate_until", {}, (answer.prompt, settings), 0)
        return self._builder.build(instance, 0)

    def _explain_text(self, job: Prepared, a: Answer, b: Answer) -> Difference | None:
        """The nearest of the differences in tokens that the texts may stand for."""
        if a.token_ids is None and b.token_ids is not None:
            known = _Known(b.token_ids, a.text, is_b=True)
        else:
            ids = a.token_ids or tuple(self._lm.tok_encode(a.text, add_special_tokens=False))
            known = _Known(ids, b.text, is_b=False)
        found = [one for one in self._candidates(job, known) if one.margin is not None]
        return min(found, key=lambda one: one.margin or 0.0, default=None)

    def _candidates(self, job: Prepared, known: _Known) -> Iterator[Difference]:
        """One difference for each position at which the other text may have gone its own way."""
        last = self._shows_at(job, known)
        for position in range(last, max(-1, last - _BYTES_PER_CHARACTER), -1):
            before = known.token_ids[:position]
            if self._text(before) != self._text(known.token_ids[:last]):
                return
            rescored = self._rescorer.rescore(job.request, before)
            other = self._alternative(job, known, rescored)
            if other is not None:
                own = known.token_ids[position]
                margin = rescored.margin(own, other)
                tokens = (own, other) if known.is_b else (other, own)
                yield Difference(position, *tokens, margin, rescored.noise)

    def _shows_at(self, job: Prepared, known: _Known) -> int:
        """Index of the first token whose text the other answer does not have."""
        for position in range(len(known.token_ids)):
            if not self._goes_on(job, self._text(known.token_ids[: position + 1]), known):
                return position
        return len(known.token_ids) - 1

    def _alternative(self, job: Prepared, known: _Known, rescored: Rescored) -> int | None:
        """The likeliest token, other than the known one, that the other text may go on with."""
        own = known.token_ids[len(rescored.output_ids)]
        count = min(_NUM_ALTERNATIVES, len(rescored.logits))
        for token in torch.topk(rescored.logits, count).indices.tolist():
            text = self._text((*rescored.output_ids, token))
            if token != own and self._goes_on(job, text, known):
                return int(token)
        return None

    def _goes_on(self, job: Prepared, text: str, known: _Known) -> bool:
        """Whether an answer that begins with `text` can be the other one, once cut at a stop."""
        cut: str = postprocess_generated_text(text, stop=job.until, think_end_token=None)
        whole = [known.other_text, *(known.other_text + stop for stop in job.until)]
        return any(uncut.startswith(cut) for uncut in whole)

    def _text(self, token_ids: Sequence[int]) -> str:
        """Text of `token_ids` without a character that is not complete yet."""
        text: str = self._lm.tok_decode(list(token_ids))
        return text.rstrip("\N{REPLACEMENT CHARACTER}")
