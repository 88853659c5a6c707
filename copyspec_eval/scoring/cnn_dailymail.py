"""Scores of a summary: ROUGE against the reference, and the share copied from the article."""

from __future__ import annotations

import functools
import re
from dataclasses import dataclass

from rouge_score.rouge_scorer import RougeScorer

_ROUGES = ("rouge1", "rouge2", "rougeL")
_LIST_MARKER = re.compile(r"(?m)^\s*(?:[-*•]|\d{1,2}[.)])\s+")
_SENTENCE_END = re.compile(r"(?<=[.!?])\s+|(?<=[.!?][\"'\u201d\u2019)\]])\s+|\n+")
_QUOTES = '"“” \t'


@dataclass(frozen=True, slots=True)
class SummaryScores:
    """Scores of one summary, each from 0 to 1.

    Attributes:
        rouge1, rouge2, rougeL: F1 of unigrams, bigrams, and the longest common subsequence.
        verbatim: as `verbatim_share`.
    """

    rouge1: float
    rouge2: float
    rougeL: float
    verbatim: float


def score_summary(summary: str, article: str, highlights: str) -> SummaryScores:
    """Score `summary` against the reference `highlights` and against `article`."""
    scores = _scorer().score(highlights, summary)
    rouges = {name: float(scores[name].fmeasure) for name in _ROUGES}
    return SummaryScores(**rouges, verbatim=verbatim_share(summary, article))


def sentences(text: str) -> list[str]:
    """Sentences of `text`, without list markers and enclosing double quotes, spaces made single.

    A sentence ends at a line's end, or where `.`, `!` or `?`, optionally with a closing quote or
    bracket, precedes white space. So "U.S. officials" is split in two, which does no harm: both
    parts of a copied sentence occur in the article.

    >>> sentences('1. "It rains."\\n2. Go  home! (Now.) Or')
    ['It rains.', 'Go home!', '(Now.)', 'Or']
    """
    parts = _SENTENCE_END.split(_LIST_MARKER.sub("", text))
    cleaned = (_single_spaced(part).strip(_QUOTES) for part in parts)
    return [part for part in cleaned if any(map(str.isalnum, part))]


def verbatim_share(summary: str, article: str) -> float:
    """Share of the summary's sentences that occur in the article up to white space; 0 without any.

    >>> verbatim_share("It rained. It snowed.", "On Monday it\\nrained. It snowed.")
    0.5
    """
    source = _single_spaced(article)
    copied = [sentence in source for sentence in sentences(summary)]
    return sum(copied) / len(copied) if copied else 0.0


def _single_spaced(text: str) -> str:
    return " ".join(text.split())


@functools.cache
def _scorer() -> RougeScorer:
    return RougeScorer(list(_ROUGES), use_stemmer=True)
