"""Scores of a summary: ROUGE against the reference, and the share copied from the article."""

import re

_ROUGES = ("rouge1", "rouge2", "rougeL")
UNSTEMMED = tuple(f"{name}_unstemmed" for name in (*_ROUGES, "rougeLsum"))
SCORES = (*_ROUGES, "verbatim", *UNSTEMMED)  # the names of `score_summary`

_LIST_MARKER = re.compile(r"(?m)^\s*(?:[-*•]|\d{1,2}[.)])\s+")
_SENTENCE_END = re.compile(r"(?<=[.!?])\s+|(?<=[.!?][\"'\u201d\u2019)\]])\s+|\n+")
_QUOTES = '"“” \t'


def score_summary(
    summary: str, article: str, highlights: str, unstemmed: bool = False
) -> dict[str, float]:
    """F1 of ROUGE against the reference `highlights`, and `verbatim_share`, each from 0 to 1.

    With `unstemmed` also ROUGE as the paper's code takes it, of words as they stand and lines as
    sentences.

    >>> scores = score_summary("Dogs bark.", "", "A dog barks.\\nDogs bark.", unstemmed=True)
    >>> {name: round(score, 2) for name, score in scores.items()}
    {'rouge1': 0.57, ..., 'rouge1_unstemmed': 0.57, 'rouge2_unstemmed': 0.4, ..., 'verbatim': 0.0}
    """
    # It loads NLTK, for which other tasks should not wait.
    from rouge_score.rouge_scorer import RougeScorer

    scores = RougeScorer(_ROUGES, use_stemmer=True).score(highlights, summary)
    if unstemmed:
        as_they_stand = RougeScorer([*_ROUGES, "rougeLsum"]).score(highlights, summary)
        scores |= {f"{name}_unstemmed": score for name, score in as_they_stand.items()}
    rouges = {name: float(score.fmeasure) for name, score in scores.items()}
    return rouges | {"verbatim": verbatim_share(summary, article)}


def sentences(text: str) -> list[str]:
    """Sentences of `text`, without list markers and enclosing double quotes, spaces made single.

    They end with a line or at `.`, `!` or `?`; a copied one may be split: its parts are copied.

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
