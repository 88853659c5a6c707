"""Whether two runs gave the same answers and the same scores; as JSON values, and as tables."""

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal, get_args

import numpy
from pandas import cut

from copyspec_eval.records import AnswerKey
from copyspec_eval.reports.runs import Answer, Run, Scores
from copyspec_eval.reports.summary import CONFIDENCE, bootstrap_interval
from copyspec_eval.reports.tables import number, terminal
from copyspec_eval.types import Difference, first_difference

PairStatus = Literal[
    "identical",  # the same prompt, and the same answer
    "near_tie",  # another answer, which rounding explains, as only the model can tell
    "diverged",  # another answer
    "missing",  # in one of the runs only
    "other_prompt",  # and no earlier turn of the conversation differs
    "not_comparable",  # the prompts contain an earlier turn that differs
]

_NAMES: dict[PairStatus, str] = {
    status: status.replace("_", " ") for status in get_args(PairStatus)
}
_NAMES["near_tie"] = "near-tie"
_SHARES = (0.01, 0.1, 0.5, 1.0, 2.0, 10.0)
"""Upper ends of the histogram's bins, in shares of twice the noise; a near-tie is at most 1."""
_MAX_LINES, _EXCERPT = 20, 20


@dataclass(frozen=True, slots=True)
class Pair:
    """Two runs' answers to a request, compared by tokens where both have them, then by text."""

    key: AnswerKey
    status: PairStatus
    compared_by: Literal["tokens", "text"] | None
    position: int | None  # of the first token, or character, that differs
    a: Answer | None
    b: Answer | None
    difference: Difference | None = None  # as the model measured it, with `a` as the baseline


@dataclass(frozen=True, slots=True)
class ScorePair:
    """One metric of one task in both runs: their means over the documents that both have."""

    task: str
    metric: str
    num_documents: int
    num_unpaired: int
    a: float | None = None
    b: float | None = None
    difference: float | None = None
    discordant: tuple[int, int] | None = None  # how many only a, and only b, has right, if binary
    p_value: float | None = None  # of McNemar's exact test on those
    interval: tuple[float, float] | None = None  # of the difference, if not binary


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
    return any(pair.status in ("diverged", "missing", "other_prompt") for pair in pairs)


def compare_scores(a: Scores, b: Scores) -> list[ScorePair]:
    names = {(task, metric) for scores in (a, b) for task in scores for metric in scores[task]}
    pairs = []
    for task, metric in sorted(names):
        both = (scores.get(task, {}).get(metric, {}) for scores in (a, b))
        pairs.append(_score_pair(task, metric, *both))
    return pairs


def _pair(key: AnswerKey, a: Answer | None, b: Answer | None, differing: bool) -> Pair:
    """Compare two answers; `differing`: whether an earlier turn of the conversation differs."""
    if a is None or b is None:
        return Pair(key, "missing", None, None, a, b)
    if a.prompt_sha256 != b.prompt_sha256:
        return Pair(key, "not_comparable" if differing else "other_prompt", None, None, a, b)
    by_tokens = a.token_ids is not None and b.token_ids is not None
    position = first_difference(a.token_ids or (), b.token_ids or ()) if by_tokens else None
    if position is None and (in_text := first_difference(a.text, b.text)) is not None:
        by_tokens, position = False, in_text
    status: PairStatus = "identical" if position is None else "diverged"
    return Pair(key, status, "tokens" if by_tokens else "text", position, a, b)


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
        tail = sum(math.comb(only_a + only_b, k) for k in range(min(only_a, only_b) + 1))
        p_value = min(1.0, 2 * tail / 2 ** (only_a + only_b))
        return replace(pair, discordant=(only_a, only_b), p_value=p_value)
    if len(common) == 1:
        return pair
    changes, documents = numpy.array(differences), numpy.arange(len(common))
    interval = bootstrap_interval(lambda drawn: drawn @ changes / len(changes), documents)
    return replace(pair, interval=interval)


def comparison_figures(pairs: Sequence[Pair], scores: Sequence[ScorePair]) -> dict[str, Any]:
    """Everything as JSON values, as `compare --json` prints it."""
    by_turn: dict[tuple[str, int], list[Pair]] = {}
    for pair in pairs:
        by_turn.setdefault((pair.key.task, pair.key.turn), []).append(pair)
    return {
        "equal": not fails(pairs),
        "counts": _counts(pairs),
        "turns": [_turn(*place, part) for place, part in sorted(by_turn.items())],
        "differences": [_difference(pair) for pair in pairs if pair.status != "identical"],
        "margins": _margins(pairs),
        "scores": [asdict(score) for score in scores],
    }


def comparison_tables(figures: Mapping[str, Any]) -> str:
    """Tables and, between them, the differing answers by name; the verdict last."""
    differences = figures["differences"]
    lines = [_line(each) for each in differences if each["status"] != "not_comparable"]
    if len(lines) > _MAX_LINES:
        more = len(lines) - _MAX_LINES
        lines[_MAX_LINES:] = [f"- … and {more} more (--json lists all)"]
    names = ["task", "turn", "answers", *_NAMES, "compared_by"]
    turns = [[turn[name] for name in names] for turn in figures["turns"]]
    turn_headers = [*names[:3], *_NAMES.values(), "compared by"]
    margin_headers = ["margin, in shares of twice the noise", "answers"]
    score_headers = ["task", "metric", "A", "B", "difference", "test", "p or interval"]
    parts = [
        terminal(turn_headers, turns),
        "".join(f"{line}\n" for line in lines),
        terminal(margin_headers, list(figures["margins"].items())),
        terminal([*score_headers, "n", "unpaired"], list(map(_score_row, figures["scores"]))),
        _verdict(figures["counts"], figures["equal"]) + "\n",
    ]
    return "\n".join(filter(None, parts))


def _counts(pairs: Sequence[Pair]) -> dict[str, int]:
    counts = Counter(pair.status for pair in pairs)
    return {"answers": len(pairs)} | {status: counts[status] for status in _NAMES}


def _turn(task: str, turn: int, pairs: Sequence[Pair]) -> dict[str, Any]:
    kinds = {pair.compared_by for pair in pairs if pair.compared_by}
    compared_by = "both" if len(kinds) > 1 else next(iter(kinds), None)
    return {"task": task, "turn": turn, "compared_by": compared_by} | _counts(pairs)


def _margins(pairs: Sequence[Pair]) -> dict[str, int]:
    """Histogram of how near the model was to both answers."""
    asked = [pair.difference for pair in pairs if pair.difference]
    shares = [
        math.inf if each.margin is None or not each.noise else each.margin / (2 * each.noise)
        for each in asked
    ]
    if not shares:
        return {}
    names = [*(f"up to {share:g}" for share in _SHARES), "more"]
    bins = cut(shares, [-math.inf, *_SHARES, math.inf], labels=names)
    return {str(name): int(count) for name, count in bins.value_counts().items()}


def _difference(pair: Pair) -> dict[str, Any]:
    start = first_difference(pair.a.text, pair.b.text) if pair.a and pair.b else None

    def side(answer: Answer | None) -> dict[str, Any] | None:
        """The first token that differs, if tokens were compared, and the text from there on."""
        if answer is None:
            return None
        token_ids = answer.token_ids if pair.compared_by == "tokens" else None
        token_id = next(iter((token_ids or ())[pair.position :]), None)
        text = "" if start is None else answer.text[start : start + _EXCERPT]
        return {"token_id": token_id, "text": text}

    return {
        **pair.key._asdict(),
        "status": pair.status,
        "compared_by": pair.compared_by,
        "position": pair.position,
        "a": side(pair.a),
        "b": side(pair.b),
        "difference": asdict(pair.difference) if pair.difference else None,
    }


def _line(difference: Mapping[str, Any]) -> str:
    repeat = f" repeat {difference['repeat']}" if difference["repeat"] else ""
    name = f"- {difference['task']} doc {difference['doc_id']} turn {difference['turn']}{repeat}"
    a, b, status = difference["a"], difference["b"], difference["status"]
    if a is None or b is None:
        return f"{name}: missing in {'A' if a is None else 'B'}"
    if difference["position"] is None:
        return f"{name}: another prompt"
    unit = "token" if difference["compared_by"] == "tokens" else "character"
    place = f"{_NAMES[status]} at {unit} {difference['position']}"
    return f"{name}: {place}: A {_side_text(a)}, B {_side_text(b)}"


def _side_text(side: Mapping[str, Any]) -> str:
    shown = [] if side["token_id"] is None else [str(side["token_id"])]
    return " ".join(shown + ([repr(side["text"])] if side["text"] else [])) or "ends"


def _score_row(score: Mapping[str, Any]) -> list[object]:
    means = [number(score[name], ".4g") for name in ("a", "b", "difference")]
    test, result = "", ""
    if score["discordant"]:
        only_a, only_b = score["discordant"]
        test, result = "McNemar", f"p = {score['p_value']:.3g} ({only_a} only A, {only_b} only B)"
    elif score["interval"]:
        low, high = score["interval"]
        test, result = "bootstrap", f"{CONFIDENCE:.0%} from {low:.4g} to {high:.4g}"
    counts = score["num_documents"], score["num_unpaired"]
    return [score["task"], score["metric"], *means, test, result, *counts]


def _verdict(counts: Mapping[str, int], equal: bool) -> str:
    named = {status: f"{counts[status]} {name}" for status, name in _NAMES.items()}
    others = [named[status] for status in named if status != "identical" and counts[status]]
    identical = f"{counts['identical']} of {counts['answers']} answers"
    if not equal:
        return f"NOT EQUAL: {', '.join(others)}; identical: {identical}"
    return ", ".join([f"identical: {identical}", *others])
