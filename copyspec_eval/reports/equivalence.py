"""Whether two runs gave the same answers and the same scores."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

import numpy
from scipy.stats import binomtest

from copyspec_eval.reports.runs import Answer, AnswerKey, Run
from copyspec_eval.reports.summary import bootstrap_interval
from copyspec_eval.types import Difference, first_difference

PairStatus = Literal[
    "identical", "near_tie", "diverged", "missing", "other_prompt", "not_comparable"
]
"""How two runs' answers compare.

identical, diverged: the same prompt, and the same answer or another.
near_tie: diverged where rounding explains it, which takes the model to decide.
missing: in one of the runs only.
other_prompt: the prompts differ, and no earlier turn of the conversation did.
not_comparable: the prompts differ, as they contain an earlier turn that did.
"""

ComparedBy = Literal["tokens", "text"]

FAILING: frozenset[PairStatus] = frozenset({"diverged", "missing", "other_prompt"})


@dataclass(frozen=True, slots=True)
class Pair:
    """The answers of two runs to one request.

    Attributes:
        key, a, b: the request and the answers; None for a missing one.
        compared_by: the tokens if both runs have them, else the text; also the text if equal tokens
            became different texts; None if nothing was compared.
        position: index of the first token, or character, that differs.
        difference: how near the model was to either answer, if it was asked; the baseline is `a`.
    """

    key: AnswerKey
    status: PairStatus
    compared_by: ComparedBy | None
    position: int | None
    a: Answer | None
    b: Answer | None
    difference: Difference | None = None


class Document(NamedTuple):
    task: str
    doc_id: int


@dataclass(frozen=True, slots=True)
class ScorePair:
    """One metric of one task in both runs, over the documents that both have.

    Attributes:
        metric: its name in lm-eval, "metric,filter".
        num_documents, num_unpaired: how many documents both runs scored, and only one of them.
        a, b, difference: the means, and b - a; None without documents.
        discordant, p_value: where every value is 0 or 1, how many documents only a, and only b, has
            right, and McNemar's exact test on those.
        interval: where there are other values, the 95 % bootstrap interval of the difference.
    """

    task: str
    metric: str
    num_documents: int
    num_unpaired: int
    a: float | None = None
    b: float | None = None
    difference: float | None = None
    discordant: tuple[int, int] | None = None
    p_value: float | None = None
    interval: tuple[float, float] | None = None


def compare_answers(a: Run, b: Run) -> list[Pair]:
    """All answers of both runs, paired, in order of key."""
    pairs: list[Pair] = []
    differing: set[tuple[str, int, int]] = set()
    for key in sorted(a.answers.keys() | b.answers.keys()):
        conversation = key.task, key.doc_id, key.repeat
        pair = _pair(key, a.answers.get(key), b.answers.get(key), conversation in differing)
        if pair.status != "identical":
            differing.add(conversation)
        pairs.append(pair)
    return pairs


def fails(pairs: Iterable[Pair]) -> bool:
    """Whether the runs differ in a way that neither rounding nor an earlier turn explains."""
    return any(pair.status in FAILING for pair in pairs)


def reordered_documents(a: Run, b: Run) -> list[Document]:
    """The fewest documents that, moved, give the log of `a` the order of `b`'s.

    Documents of one run only are left out.
    """
    in_a, in_b = (
        dict.fromkeys(Document(key.task, key.doc_id) for key in run.answers) for run in (a, b)
    )
    places = {document: place for place, document in enumerate(in_b)}
    common = [document for document in in_a if document in places]
    in_order = longest_increasing([places[document] for document in common])
    return [document for document in common if places[document] not in in_order]


def compare_scores(a: Run, b: Run) -> list[ScorePair]:
    """All metrics of both runs that are numbers per document, in order of task and metric."""
    scores_a, scores_b = (
        {
            (task, metric): scores
            for task in run.scores
            for metric, scores in run.scores[task].items()
        }
        for run in (a, b)
    )
    names = sorted(scores_a.keys() | scores_b.keys())
    return [_score_pair(*name, scores_a.get(name, {}), scores_b.get(name, {})) for name in names]


def longest_increasing(numbers: Iterable[int]) -> set[int]:
    """The members of a longest increasing subsequence of distinct `numbers`.

    >>> sorted(longest_increasing([0, 3, 1, 2, 4]))
    [0, 1, 2, 4]
    """
    ends: list[int] = []  # ends[k] is the smallest number that k others can lead up to
    before: dict[int, int | None] = {}
    for number in numbers:
        length = bisect_left(ends, number)
        before[number] = ends[length - 1] if length else None
        ends[length : length + 1] = [number]
    members: set[int] = set()
    last = ends[-1] if ends else None
    while last is not None:
        members.add(last)
        last = before[last]
    return members


def _pair(key: AnswerKey, a: Answer | None, b: Answer | None, differing: bool) -> Pair:
    """Compare two answers; `differing`: whether an earlier turn of the conversation differs."""
    if a is None or b is None:
        return Pair(key, "missing", None, None, a, b)
    if a.prompt_sha256 != b.prompt_sha256:
        return Pair(key, "not_comparable" if differing else "other_prompt", None, None, a, b)
    differences: list[tuple[ComparedBy, int | None]] = [("text", first_difference(a.text, b.text))]
    if a.token_ids is not None and b.token_ids is not None:
        differences.insert(0, ("tokens", first_difference(a.token_ids, b.token_ids)))
    for compared_by, position in differences:
        if position is not None:
            return Pair(key, "diverged", compared_by, position, a, b)
    return Pair(key, "identical", differences[0][0], None, a, b)


def _score_pair(task: str, metric: str, a: dict[int, float], b: dict[int, float]) -> ScorePair:
    common = sorted(a.keys() & b.keys())
    num_unpaired = len(a.keys() ^ b.keys())
    if not common:
        return ScorePair(task, metric, 0, num_unpaired)
    values_a, values_b = ([values[doc_id] for doc_id in common] for values in (a, b))
    differences = [y - x for x, y in zip(values_a, values_b, strict=True)]
    a_mean, b_mean, mean = (sum(each) / len(common) for each in (values_a, values_b, differences))
    pair = ScorePair(task, metric, len(common), num_unpaired, a_mean, b_mean, mean)
    if {*values_a, *values_b} <= {0, 1}:
        only_a, only_b = differences.count(-1), differences.count(1)
        # McNemar: the discordant documents fall on either side with even chances.
        p_value = binomtest(only_b, only_a + only_b, 0.5).pvalue if only_a + only_b else 1.0
        return replace(pair, discordant=(only_a, only_b), p_value=float(p_value))
    if len(common) > 1:
        changes = numpy.array(differences)
        documents = numpy.arange(len(changes))
        interval = bootstrap_interval(lambda drawn: drawn @ changes / len(changes), documents)
        return replace(pair, interval=interval)
    return pair
