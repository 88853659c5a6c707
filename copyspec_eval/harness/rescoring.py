"""`compare --rescore`: ask the model whether rounding explains where two runs' answers differ."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial

import torch
from lm_eval.api.instance import Instance
from lm_eval.models.utils import postprocess_generated_text

from copyspec_eval.decoding.engine import Engine
from copyspec_eval.drafters.base import NoDrafter
from copyspec_eval.harness.answering import rendered
from copyspec_eval.harness.lm import CopySpecLM
from copyspec_eval.harness.recorder import Asked
from copyspec_eval.harness.requests import Prepared, RequestBuilder
from copyspec_eval.pairs.differences import Rescorer
from copyspec_eval.reports.comparison import Pair
from copyspec_eval.reports.runs import Answer
from copyspec_eval.types import PAPER_DRAFT_TOKENS, Difference

# Settings that do not change the choice of a token: of assisted generation, and vLLM's replies.
_NEUTRAL = {"prompt_lookup_num_tokens", "max_matching_ngram_size", "return_token_ids"}
# Likeliest tokens to try as the next one of an answer whose text alone is known.
_NUM_ALTERNATIVES = 64
_BYTES_PER_CHARACTER = 4  # tokens, at most, until a difference shows in the text


def rescore(pairs: Sequence[Pair], pretrained: str, dtypes: Iterable[str]) -> list[Pair]:
    """`pairs`, with a `Difference` for those that differ, near-ties where rounding explains it.

    Model `pretrained` reads prompt and common part of both answers, in the coarsest of `dtypes`,
    else the checkpoint's own. If only an answer's text is known, tokens that may have given it are
    tried, likeliest first. Sampled answers, and those without a prompt, stay as they are.
    """
    differing = [
        pair
        for pair in pairs
        if pair.status == "diverged"
        and all(a is None or (a.prompt is not None and not a.sampled) for a in (pair.a, pair.b))
    ]
    if not differing:
        return list(pairs)
    names = [dtype.removeprefix("torch.") for dtype in dtypes]
    coarsest = max(names, key=lambda name: torch.finfo(getattr(torch, name)).eps, default="auto")
    model = _RescoringModel(pretrained, coarsest)
    rescored = {pair.key: model.rescore(pair) for pair in differing}
    return [rescored.get(pair.key, pair) for pair in pairs]


class _RescoringModel:
    def __init__(self, pretrained: str, dtype: str) -> None:
        self._lm = CopySpecLM(pretrained, drafter="none", exact=False, dtype=dtype)
        session = self._lm.prepare()
        engine = partial(Engine, session.model, NoDrafter, exact=None, cache=session.cache)
        engines = (engine(num_draft_tokens=n) for n in (0, PAPER_DRAFT_TOKENS))
        self._rescorer = Rescorer(session.model, *engines)
        self._builder = RequestBuilder(self._lm)

    def rescore(self, pair: Pair) -> Pair:
        assert pair.a is not None, "only answers with the same prompt differ"
        assert pair.b is not None
        settings = {k: v for k, v in pair.a.gen_kwargs.items() if k not in _NEUTRAL}
        prompt = rendered(pair.a.prompt or "", self._lm)
        instance = Instance("generate_until", {}, (prompt, settings), 0)
        job = self._builder.prepare(Asked(instance, 0, prompt, settings))
        if pair.compared_by == "tokens" and pair.a.token_ids and pair.b.token_ids:
            difference = self._rescorer.explain(job.sequence, pair.b.token_ids, pair.a.token_ids)
        else:
            difference = self._explain_text(job, pair.a, pair.b)
        if difference is None:
            return pair
        return replace(pair, status=difference.agreement, difference=difference)

    def _explain_text(self, job: Prepared, a: Answer, b: Answer) -> Difference | None:
        """The nearest of the differences in tokens that the texts may stand for."""
        has_only_b = a.token_ids is None and b.token_ids is not None
        given, other = (b, a) if has_only_b else (a, b)
        ids = given.token_ids or tuple(self._lm.tok_encode(given.text, add_special_tokens=False))
        candidates = self._candidates(job, ids, other.text)
        possible = [each for each in candidates if each.margin is not None]
        nearest = min(possible, key=lambda each: each.margin or 0.0, default=None)
        if nearest is None or not has_only_b:
            return nearest
        token, other_token = nearest.baseline_token_id, nearest.token_id
        return replace(nearest, token_id=token, baseline_token_id=other_token)

    def _candidates(
        self, job: Prepared, ids: tuple[int, ...], other_text: str
    ) -> Iterator[Difference]:
        """One difference for each position at which `other_text` may have another token."""
        texts = (self._text(ids[: place + 1]) for place in range(len(ids)))
        visible = (n for n, text in enumerate(texts) if not self._may_begin(job, text, other_text))
        last = next(visible, len(ids) - 1)  # the first token that shows
        for position in range(last, max(-1, last - _BYTES_PER_CHARACTER), -1):
            before, token = ids[:position], ids[position]
            if self._text(before) != self._text(ids[:last]):
                return
            rescored = self._rescorer.rescore(job.sequence, before, ids[position:])
            count = min(_NUM_ALTERNATIVES, len(rescored.logits))
            for other in map(int, torch.topk(rescored.logits, count).indices):
                text = self._text((*before, other))
                if other != token and self._may_begin(job, text, other_text):
                    margin = rescored.margin(token, other)
                    yield Difference(position, other, token, margin, rescored.noise)
                    break

    def _may_begin(self, job: Prepared, text: str, answer: str) -> bool:
        """Whether `text`, cut at a stop string, can be the beginning of `answer`."""
        cut: str = postprocess_generated_text(text, stop=job.until, think_end_token=None)
        uncut = [answer, *(answer + stop for stop in job.until)]
        return any(possible.startswith(cut) for possible in uncut)

    def _text(self, token_ids: Sequence[int]) -> str:
        """Text of `token_ids` without a character that is not complete yet."""
        text: str = self._lm.tok_decode(list(token_ids))
        return text.rstrip("\N{REPLACEMENT CHARACTER}")
