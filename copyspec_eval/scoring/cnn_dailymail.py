"""What a summary is worth: ROUGE against the reference, and how much of it is the article's."""

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
    """Figures of one summary, each from 0 to 1.

    Attributes:
        rouge1, rouge2, rougeL: F1 of unigrams, bigrams, and the longest common subsequence of the
            whole texts.
        verbatim: share of its sentences that stand in the article word for word; 0 without any.
    """

    rouge1: float
    rouge2: float
    rougeL: float
    verbatim: float


def score(summary: str, article: str, highlights: str) -> SummaryScores:
    """`summary` against the reference `highlights` and the whole `article`."""
    rouges = _scorer().score(highlights, summary)
    figures = {name: float(rouges[name].fmeasure) for name in _ROUGES}
    return SummaryScores(**figures, verbatim=verbatim_share(summary, article))


def sentences(text: str) -> list[str]:
    """Sentences of `text`, without list markers and enclosing double quotes, spaces made single.

    A sentence ends at a line's end, or where `.`, `!` or `?`, perhaps with a closing quote or
    bracket, comes before white space. So "U.S. officials" is two; what stands in an article does so
    in parts as well.

    >>> sentences('1. "It rains."\\n2. Go  home! (Now.) Or')
    ['It rains.', 'Go home!', '(Now.)', 'Or']
    """
    parts = _SENTENCE_END.split(_LIST_MARKER.sub("", text))
    cleaned = (_single_spaced(part).strip(_QUOTES) for part in parts)
    return [part for part in cleaned if any(map(str.isalnum, part))]


def verbatim_share(summary: str, article: str) -> float:
    """Share of the summary's sentences that occur in the article, white space apart.

    >>> verbatim_share("It rained. It snowed.", "On Monday it\\nrained. It snowed.")
    0.5
    """
    found = [sentence in _single_spaced(article) for sentence in sentences(summary)]
    return sum(found) / len(found) if found else 0.0


def _single_spaced(text: str) -> str:
    return " ".join(text.split())


@functools.cache
def _scorer() -> RougeScorer:
    return RougeScorer(list(_ROUGES), use_stemmer=True)
