"""The result of an audit: figures as JSON values, and the lines that the terminal shows."""

import math
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from statistics import NormalDist, median
from typing import Any

import numpy

from copyspec_eval.audit.asking import Asking, Pair
from copyspec_eval.audit.replies import Reply
from copyspec_eval.audit.verdicts import FAULTS, KINDS, Kind, Verdict
from copyspec_eval.reports.comparison import compare_scores
from copyspec_eval.reports.runs import Scores
from copyspec_eval.reports.summary import (
    CONFIDENCE,
    Integers,
    Statistic,
    bootstrap_interval,
    ratio_of_rates,
    speedup_statistic,
)

NAMES: dict[Kind, str] = {kind: kind.replace("_", " ") for kind in KINDS}
NAMES |= {"near_tie": "near-tie", "stop": "stop or parser"}
_MOST_CASES = 100

_MEANING: dict[Kind, str] = {
    "corruption": "B's tokens are unlikely by A: look for stale state, a mixed-up cache, or "
    "wrong acceptance",
    "unstable": "a side differs from itself: look at caches and at requests that run side by side",
    "stop": "one answer is the beginning of the other: look at stop strings, EOS and parsers",
    "divergence": "B differs from A by more than A's own noise: another precision or quantisation, "
    "or a fault",
    "unknown": "A gives no log-probabilities there: pass --rescore MODEL",
}
"""What to do about a kind of difference, the worst first."""


def interval(count: int, total: int) -> tuple[float, float]:
    """Wilson's interval of a share, which also holds at 0 and 1.

    >>> low, high = interval(0, 40)
    >>> low, round(high, 3)
    (0.0, 0.088)
    """
    z = NormalDist().inv_cdf((1 + CONFIDENCE) / 2)
    centre = count + z * z / 2
    half = z * math.sqrt(count * (total - count) / total + z * z / 4)
    low, high = ((centre + sign * half) / (total + z * z) for sign in (-1, 1))
    return max(0.0, low), min(1.0, high)


def findings(
    asking: Asking, facts: dict[str, dict[str, Any]], scores: tuple[Scores, Scores]
) -> dict[str, Any]:
    """Everything as JSON values."""
    pairs = asking.pairs
    cells: dict[tuple[str, int], list[Pair]] = {}
    for pair in pairs:
        cells.setdefault((pair.question.key.task, pair.level), []).append(pair)
    return {
        "verdict": overall(pair.verdict for pair in pairs),
        **{letter: {"name": side.name, **facts[letter]} for letter, side in asking.sides.items()},
        "counts": counts(pairs),
        "answers": _shares(pairs),
        "tokens": _token_shares(pairs),
        "settings": [
            {"task": task, "concurrency": level, "verdict": overall(p.verdict for p in part)}
            | {"counts": counts(part)}
            for (task, level), part in sorted(cells.items())
        ],
        "where": _where(pairs),
        "noise": {
            "nats": asking.noise,
            "answers_repeated": len(asking.repeated),
            "places_read_again": len(asking.read_again),
        },
        "scores": [asdict(score) for score in compare_scores(*scores) if score.num_documents],
        "speed": _speed(pairs),
        "acceptance": {each: _acceptance(pairs, each) for each in ("a", "b")},
        "requests": asking.num_asked,
        "notes": _notes(pairs, scores[0].keys() & scores[1].keys()),
        "cases": [case(pair) for pair in worst(pairs)[:_MOST_CASES]],
    }


def overall(verdicts: Iterable[Verdict]) -> str:
    """One word for many verdicts.

    >>> [overall(map(Verdict, each)) for each in ([], ["identical"], ["near_tie", "identical"])]
    ['undecided', 'identical', 'rounding']
    >>> overall([Verdict("unknown"), Verdict("stop")]), overall([Verdict("unknown")])
    ('broken', 'undecided')
    """
    kinds = {verdict.kind for verdict in verdicts}
    if kinds & FAULTS:
        return "broken"
    if "unknown" in kinds or not kinds:
        return "undecided"
    return "rounding" if "near_tie" in kinds else "identical"


def exit_code(result: dict[str, Any]) -> int:
    return {"identical": 0, "rounding": 0, "broken": 1, "undecided": 2}[result["verdict"]]


def counts(pairs: Sequence[Pair]) -> dict[str, int]:
    number = Counter(pair.verdict.kind for pair in pairs)
    return {"answers": len(pairs)} | {kind: number[kind] for kind in KINDS}


def _shares(pairs: Sequence[Pair]) -> dict[str, Any]:
    number = counts(pairs)
    return {
        kind: {"share": number[kind] / len(pairs), "interval": interval(number[kind], len(pairs))}
        for kind in KINDS
        if pairs
    }


def _token_shares(pairs: Sequence[Pair]) -> dict[str, Any]:
    """Of A's tokens those from the first difference on, by its kind; identical are those before.

    The bootstrap resamples conversations. Characters stand for tokens where none are counted.
    """
    lengths = numpy.array([float(p.a.counts.num_tokens or len(p.a.text)) for p in pairs])
    after = lengths * [_rest(pair) for pair in pairs]
    documents = list(dict.fromkeys(pair.question.key[:2] for pair in pairs))
    clusters = numpy.array([documents.index(pair.question.key[:2]) for pair in pairs])
    result: dict[str, Any] = {}
    for kind in KINDS:
        is_kind = numpy.array([pair.verdict.kind == kind for pair in pairs])
        tokens = lengths - after if kind == "identical" else after * is_kind
        if tokens.sum() and lengths.sum():
            ends = _interval(partial(_share, tokens, lengths), clusters)
            result[kind] = {"share": float(tokens.sum() / lengths.sum()), "interval": ends}
    return result


def _interval(statistic: Statistic, clusters: Integers) -> tuple[float, float] | None:
    low, high = bootstrap_interval(statistic, clusters)
    return None if math.isnan(low) else (low, high)


def _share(part: Any, total: Any, weights: Any) -> Any:
    return (weights @ part) / (weights @ total)


def _rest(pair: Pair) -> float:
    """The share of the answer from the first difference on."""
    if pair.verdict.position is None:
        return 0.0
    return 1 - pair.verdict.position / max(1, len(pair.a.text), len(pair.b.text))


def _where(pairs: Sequence[Pair]) -> dict[str, Any]:
    """Where first differences are, from 0 at an answer's start to 1 at its end."""
    places = [1 - _rest(pair) for pair in pairs if pair.verdict.position is not None]
    quarters = Counter(min(3, int(place * 4)) for place in places)
    return {
        "median": median(places) if places else None,
        "by_quarter": [quarters[quarter] for quarter in range(4)],
    }


def _speed(pairs: Sequence[Pair]) -> dict[str, Any]:
    """Tokens per second of a request, over the answers that both sides gave once more for it."""
    timed = [pair.timed for pair in pairs if len(pair.timed) == 2]
    rows = [[*_rate(replies["b"]), *_rate(replies["a"])] for replies in timed]
    values = numpy.array([row for row in rows if all(row)])
    if not len(values):
        return {}
    b_tokens, b_seconds, a_tokens, a_seconds = values.sum(axis=0)
    return {
        "answers": len(values),
        "a": a_tokens / a_seconds,
        "b": b_tokens / b_seconds,
        "ratio": ratio_of_rates(values),
        "interval": _interval(speedup_statistic(values), numpy.arange(len(values))),
    }


def _rate(reply: Reply) -> tuple[float, float]:
    counts = reply.counts
    return float(counts.num_tokens or 0), counts.latency_seconds or counts.seconds or 0.0


def _acceptance(pairs: Sequence[Pair], letter: str) -> float | None:
    replies = [pair.a if letter == "a" else pair.b for pair in pairs]
    drafts = [each for r in replies for each in (r.counts.drafts or {}).values()]
    drafted = sum(each.num_drafted for each in drafts)
    return sum(each.num_accepted for each in drafts) / drafted if drafted else None


def _notes(pairs: Sequence[Pair], scored: Collection[str]) -> list[str]:
    lengths = [(pair.a.counts.num_prompt_tokens, pair.b.counts.num_prompt_tokens) for pair in pairs]
    unequal = [each for each in lengths if None not in each and each[0] != each[1]]
    notes = []
    if unequal:
        a, b = unequal[0]
        notes.append(
            f"{len(unequal)} of {len(lengths)} prompts have a different number of tokens on B "
            f"(e.g. {a} on A, {b} on B): the sides read different prompts; pass --tokenizer, or "
            "compare their chat templates"
        )
    unscored = sorted({pair.question.key.task for pair in pairs} - set(scored))
    if unscored:
        remedy = "programs run only with --confirm-run-unsafe-code"
        notes.append(
            f"no scores for {', '.join(unscored)}: {remedy}, and earlier runs are not rescored"
        )
    few = {pair.level for pair in pairs if pair.level > sum(p.level == pair.level for p in pairs)}
    if few:
        levels = ", ".join(map(str, sorted(few)))
        notes.append(f"too few answers to fill concurrency {levels}: raise --limit, add --tasks")
    return notes


def worst(pairs: Sequence[Pair]) -> list[Pair]:
    """Pairs that differ, faults first."""
    order = (*_MEANING, "near_tie")
    differing = (pair for pair in pairs if pair.verdict.kind in order)
    return sorted(differing, key=lambda pair: order.index(pair.verdict.kind))


def case(pair: Pair) -> dict[str, Any]:
    """A pair as JSON values; the texts around the difference, and A's reading there."""
    verdict, start = pair.verdict, max(0, (pair.verdict.position or 0) - 40)
    return {
        **pair.question.key._asdict(),
        "concurrency": pair.level,
        "kind": verdict.kind,
        "reason": verdict.reason,
        "position": verdict.position,
        "gap": asdict(verdict.gap) if verdict.gap else None,
        "noise": verdict.noise,
        "before": pair.a.text[start : verdict.position],
        "a": pair.a.text[verdict.position or 0 :][:80],
        "b": pair.b.text[verdict.position or 0 :][:80],
    }


_HEADLINES = {
    "identical": "IDENTICAL: B gives the same answers as A",
    "rounding": "ROUNDING ONLY: B differs from A only where A's own noise decides",
    "broken": "BROKEN: rounding does not explain these differences",
    "undecided": "UNDECIDED: not every difference could be explained",
}


def lines(result: dict[str, Any], folder: Path) -> list[str]:
    """Ten lines at most: verdict, figures, and what to do next."""
    number = result["counts"]
    named = [kind for kind in KINDS if number[kind] or kind in FAULTS]
    parts = [f"{number[kind]} {NAMES[kind]}" for kind in named]
    noise = result["noise"]["nats"]
    if noise is None and (local := [each["noise"] for each in result["cases"] if each["noise"]]):
        measured = f"{max(local):.2g} in logits, by --rescore"
    else:
        measured = "could not be measured" if noise is None else f"{noise:.2g} nats"
    bad = [
        f"{each['task']} at concurrency {each['concurrency']}"
        for each in result["settings"]
        if each["verdict"] == result["verdict"] != "identical"
    ]
    scores = [each for each in result["scores"] if not each["metric"].startswith("answered")]
    shown = [
        _HEADLINES[result["verdict"]],
        f"A: {result['a']['name']}; B: {result['b']['name']}",
        f"{number['answers']} answers: {', '.join(parts)}; noise of A: {measured}",
        f"where: {', '.join(bad[:6])}{', …' if len(bad) > 6 else ''}" if bad else "",
        "; ".join(map(_score_line, scores[:3])),
        _speed_line(result),
        f"note: {result['notes'][0]}" if result["notes"] else "",
        f"next: {next_step(result)}",
        f"{folder}: audit.html to read, junit.xml for CI"
        + (", bug_report.zip to send" if result["verdict"] in ("broken", "undecided") else ""),
    ]
    return [line for line in shown if line]


def next_step(result: dict[str, Any]) -> str:
    """What the user does now."""
    number, verdict = result["counts"], result["verdict"]
    if verdict == "identical":
        return "nothing; B answers as A does"
    if verdict == "rounding":
        return "nothing is broken; for equal answers, make both engines deterministic"
    kind = next((kind for kind in _MEANING if number[kind]), None)
    if kind is None:
        return "no two answers could be compared: give both sides the same tasks"
    then = "" if verdict == "undecided" else "; send bug_report.zip, it reproduces one request"
    return _MEANING[kind] + then


def exactness_commands(result: dict[str, Any]) -> list[str]:
    """Lines that offer to name the module in which a local model's steps first differ."""
    local = [result[letter] for letter in "ab" if result[letter]["model"] in ("copyspec", "hf")]
    models = [side.get("arguments", {}).get("pretrained") for side in local]
    return [
        f"which steps are exact here: copyspec-eval exactness {model}"
        for model in filter(None, dict.fromkeys(models))
    ]


def _score_line(score: dict[str, Any]) -> str:
    test = "" if score["p_value"] is None else f", McNemar p = {score['p_value']:.2g}"
    metric = score["metric"].removesuffix(",none")  # lm-eval's name of no filter
    return f"{score['task']} {metric}: A {score['a']:.3g}, B {score['b']:.3g}{test}"


def _speed_line(result: dict[str, Any]) -> str:
    speed, accepted = result["speed"], result["acceptance"]["b"]
    if not speed:
        return ""
    ends = speed["interval"]
    brackets = f" ({ends[0]:.2f} to {ends[1]:.2f})" if ends else ""
    drafts = "" if accepted is None else f"; B accepts {accepted:.0%} of its drafts"
    return (
        f"speed: A {speed['a']:.0f}, B {speed['b']:.0f} tokens/s per request, B is "
        f"{speed['ratio']:.2f}×{brackets} over {speed['answers']} answers{drafts}"
    )
