"""How two runs compare, as JSON values and as tables for people."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from itertools import groupby
from typing import Any

from copyspec_eval.reports.equivalence import Document, Pair, PairStatus, ScorePair, fails
from copyspec_eval.reports.runs import Answer
from copyspec_eval.reports.summary import CONFIDENCE
from copyspec_eval.reports.tables import number, terminal
from copyspec_eval.types import first_difference

_NAMES: dict[PairStatus, str] = {
    "identical": "identical",
    "near_tie": "near-tie",
    "diverged": "diverged",
    "missing": "missing",
    "other_prompt": "other prompt",
    "not_comparable": "not comparable",
}
_SHARES = (0.01, 0.1, 0.5, 1.0, 2.0, 10.0)
"""Upper ends of the histogram's bins, in shares of twice the noise; a near-tie is at most 1."""

_MAX_LINES = 20
_EXCERPT = 20

_Fields = Mapping[str, Any]


def comparison_figures(
    pairs: Sequence[Pair], reordered: Sequence[Document], scores: Sequence[ScorePair]
) -> dict[str, Any]:
    """Everything as JSON values.

    `{"equal": bool, "counts": {"answers": n, status: n, …}, "turns": [{"task", "turn",
    "compared_by", "answers", status: n, …}, …], "differences": [one per answer that is not
    identical, …], "margins": {bin: n, …}, "reordered": [{"task", "doc_id"}, …], "scores": [{field
    of `ScorePair`: …}, …]}`; "margins" is empty where the model was not asked.
    """
    by_turn = groupby(sorted(pairs, key=_turn), key=_turn)
    return {
        "equal": not fails(pairs),
        "counts": _counts(pairs),
        "turns": [
            {"task": task, "turn": turn, "compared_by": _compared_by(part)} | _counts(part)
            for (task, turn), part in ((key, list(group)) for key, group in by_turn)
        ],
        "differences": [_difference(pair) for pair in pairs if pair.status != "identical"],
        "margins": _margins(pairs),
        "reordered": [document._asdict() for document in reordered],
        "scores": [asdict(score) for score in scores],
    }


def comparison_tables(
    pairs: Sequence[Pair], reordered: Sequence[Document], scores: Sequence[ScorePair]
) -> str:
    """Markdown: tables and, between them, the differing answers by name; the verdict last."""
    figures = comparison_figures(pairs, reordered, scores)
    differences = figures["differences"]
    lines = [_line(each) for each in differences if each["status"] != "not_comparable"]
    lines += [f"- {task} doc {doc_id}: in another place in the log" for task, doc_id in reordered]
    if len(lines) > _MAX_LINES:
        more = len(lines) - _MAX_LINES
        lines[_MAX_LINES:] = [f"- … and {more} more (--json lists all)"]
    turns = [
        [turn["task"], turn["turn"], turn["answers"], *map(turn.get, _NAMES), turn["compared_by"]]
        for turn in figures["turns"]
    ]
    turn_headers = ["task", "turn", "answers", *_NAMES.values(), "compared by"]
    margins = list(figures["margins"].items())
    score_headers = ["task", "metric", "A", "B", "difference", "test", "p or interval"]
    parts = [
        terminal(turn_headers, turns) if turns else "",
        "".join(f"{line}\n" for line in lines),
        terminal(["margin, in shares of twice the noise", "answers"], margins) if margins else "",
        terminal([*score_headers, "n", "unpaired"], [_score_row(score) for score in scores])
        if scores
        else "",
        _verdict(figures["counts"], figures["equal"]) + "\n",
    ]
    return "\n".join(filter(None, parts))


def _turn(pair: Pair) -> tuple[str, int]:
    return pair.key.task, pair.key.turn


def _counts(pairs: Sequence[Pair]) -> dict[str, int]:
    counts = Counter(pair.status for pair in pairs)
    return {"answers": len(pairs)} | {status: counts[status] for status in _NAMES}


def _compared_by(pairs: Sequence[Pair]) -> str | None:
    """What the answers were compared by: "tokens", "text", "both" or nothing."""
    kinds = {pair.compared_by for pair in pairs if pair.compared_by}
    return "both" if len(kinds) > 1 else next(iter(kinds), None)


def _margins(pairs: Sequence[Pair]) -> dict[str, int]:
    """Histogram of how near the model was to both answers."""
    differences = [pair.difference for pair in pairs if pair.difference]
    bins = dict.fromkeys([*(f"up to {share:g}" for share in _SHARES), "more"], 0)
    for difference in differences:
        share = math.inf
        if difference.margin is not None and difference.noise:
            share = difference.margin / (2 * difference.noise)
        bins[next((f"up to {end:g}" for end in _SHARES if share <= end), "more")] += 1
    return bins if differences else {}


def _difference(pair: Pair) -> dict[str, Any]:
    """A pair that is not identical as JSON values; a missing answer is None."""
    start = first_difference(pair.a.text, pair.b.text) if pair.a and pair.b else None
    return {
        **pair.key._asdict(),
        "status": pair.status,
        "compared_by": pair.compared_by,
        "position": pair.position,
        "a": _side(pair.a, pair, start),
        "b": _side(pair.b, pair, start),
        "difference": asdict(pair.difference) if pair.difference else None,
    }


def _side(answer: Answer | None, pair: Pair, start: int | None) -> dict[str, Any] | None:
    """The first token that differs, if tokens were compared, and the text from `start` on."""
    if answer is None:
        return None
    token_id = None
    if pair.compared_by == "tokens" and pair.position is not None and answer.token_ids is not None:
        token_id = next(iter(answer.token_ids[pair.position :]), None)
    text = "" if start is None else answer.text[start : start + _EXCERPT]
    return {"token_id": token_id, "text": text}


def _line(difference: _Fields) -> str:
    """One answer and what is wrong with it; texts as Python writes them, on one line."""
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


def _side_text(side: _Fields) -> str:
    shown = [] if side["token_id"] is None else [str(side["token_id"])]
    return " ".join(shown + ([repr(side["text"])] if side["text"] else [])) or "ends"


def _score_row(score: ScorePair) -> list[object]:
    means = [number(value, ".4g") for value in (score.a, score.b, score.difference)]
    counts = [score.num_documents, score.num_unpaired]
    return [score.task, score.metric, *means, *_test(score), *counts]


def _test(score: ScorePair) -> tuple[str, str]:
    """The test's name and its result."""
    if score.discordant is not None and score.p_value is not None:
        only_a, only_b = score.discordant
        return "McNemar", f"p = {score.p_value:.3g} ({only_a} only A, {only_b} only B)"
    if score.interval is not None:
        low, high = score.interval
        return "bootstrap", f"{CONFIDENCE:.0%} from {low:.4g} to {high:.4g}"
    return "", ""


def _verdict(counts: Mapping[str, int], equal: bool) -> str:
    others = [
        f"{counts[status]} {name}"
        for status, name in _NAMES.items()
        if status != "identical" and counts[status]
    ]
    identical = f"{counts['identical']} of {counts['answers']} answers"
    if not equal:
        return f"NOT EQUAL: {', '.join(others)}; identical: {identical}"
    return ", ".join([f"identical: {identical}", *others])
