"""Differences of which side A gives no log-probabilities, judged by a local model."""

import math
from typing import Literal

from copyspec_eval.audit.asking import Asking, Pair
from copyspec_eval.audit.verdicts import Gap
from copyspec_eval.harness.rescoring import rescore as rescored_pairs
from copyspec_eval.reports.comparison import Pair as AnswerPair
from copyspec_eval.reports.runs import Answer
from copyspec_eval.types import first_difference


def rescore(asking: Asking, pretrained: str, dtypes: tuple[str, ...] = ()) -> None:
    """Have model `pretrained` read the pairs that are undecided, and judge them anew."""
    undecided = {pair.question.key: pair for pair in asking.pairs if pair.verdict.kind == "unknown"}
    for rescored in rescored_pairs(list(map(_answer_pair, undecided.values())), pretrained, dtypes):
        difference = rescored.difference
        if difference is not None:
            nats = math.inf if difference.margin is None else difference.margin
            # Of greedy answers the margin is how much likelier the other token is.
            gap = Gap(difference.position, nats, None, math.exp(-nats))
            undecided[rescored.key].rescored = gap, difference.noise
    asking.judge()


def _answer_pair(pair: Pair) -> AnswerPair:
    assert pair.a is not None
    assert pair.b is not None
    question, ids = pair.question, (pair.a.token_ids, pair.b.token_ids)
    kind: Literal["tokens", "text"] = "text"
    position = None if None in ids else first_difference(ids[0] or (), ids[1] or ())
    if position is not None:
        kind = "tokens"
    settings = question.settings | {"until": list(question.stops), "do_sample": False}
    settings |= {"max_gen_toks": question.max_tokens}
    a, b = (
        Answer(question.key, question.prompt, "", reply.text, reply.token_ids, settings)
        for reply in (pair.a, pair.b)
    )
    return AnswerPair(question.key, "diverged", kind, position, a, b)
