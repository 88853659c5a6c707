"""How two runs compare, as tables for people and as JSON values."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from copyspec_eval.reports.equivalence import (
    FAILING,
    Document,
    Pair,
    PairStatus,
    ScorePair,
    fails,
)
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


def comparison_figures(
    pairs: Sequence[Pair], reordered: Sequence[Document], scores: Sequence[ScorePair]
) -> dict[str, Any]:
    """Everything as JSON values.

    `{"equal": bool, "counts": {"answers": n, status: n, …}, "turns": [{"task", "turn",
    "compared_by", "answers", status: n, …}, …], "differences": [one per answer that is not
    identical, …], "margins": {bin: n, …}, "reordered": [{"task", "doc_id"}, …], "scores": [{field
    of `ScorePair`: …}, …]}`; "margins" is empty where the model was not asked.
    """
    return {
        "equal": not fails(pairs),
        "counts": _counts(pairs),
        "turns": [
            {"task": task, "turn": turn, "compared_by": _compared_by(part)} | _counts(part)
            for (task, turn), part in _by_turn(pairs).items()
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
    lines = [_line(pair) for pair in pairs if pair.status in FAILING | {"near_tie"}]
    lines += [f"- {task} doc {doc_id}: in another place in the log" for task, doc_id in reordered]
    if len(lines) > _MAX_LINES:
        more = len(lines) - _MAX_LINES
        lines[_MAX_LINES:] = [f"- … and {more} more (--json lists all)"]
    parts = [
        _answer_table(pairs) if pairs else "",
        "".join(f"{line}\n" for line in lines),
        _margin_table(pairs),
        _score_table(scores) if scores else "",
        _verdict(pairs) + "\n",
    ]
    return "\n".join(filter(None, parts))


def _answer_table(pairs: Sequence[Pair]) -> str:
    return terminal(
        ["task", "turn", "answers", *_NAMES.values(), "compared by"],
        [
            [task, turn, *_counts(part).values(), _compared_by(part)]
            for (task, turn), part in _by_turn(pairs).items()
        ],
    )


def _margin_table(pairs: Sequence[Pair]) -> str:
    rows = [[name, count] for name, count in _margins(pairs).items()]
    return terminal(["margin, in shares of twice the noise", "answers"], rows) if rows else ""


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


def _score_table(scores: Sequence[ScorePair]) -> str:
    return terminal(
        ["task", "metric", "A", "B", "difference", "test", "p or interval", "n", "unpaired"],
        [
            [
                score.task,
                score.metric,
                *(number(value, ".4g") for value in (score.a, score.b, score.difference)),
                *_test(score),
                score.num_documents,
                score.num_unpaired,
            ]
            for score in scores
        ],
    )


def _verdict(pairs: Sequence[Pair]) -> str:
    counts = _counts(pairs)
    others = [
        f"{counts[status]} {name}"
        for status, name in _NAMES.items()
        if status != "identical" and counts[status]
    ]
    identical = f"{counts['identical']} of {counts['answers']} answers"
    if fails(pairs):
        return f"NOT EQUAL: {', '.join(others)}; identical: {identical}"
    return ", ".join([f"identical: {identical}", *others])


def _line(pair: Pair) -> str:
    """One answer and what is wrong with it; texts as Python writes them, so that none breaks it."""
    task, doc_id, turn, repeat = pair.key
    name = f"- {task} doc {doc_id} turn {turn}" + (f" repeat {repeat}" if repeat else "")
    if pair.a is None or pair.b is None:
        return f"{name}: missing in {'A' if pair.a is None else 'B'}"
    if pair.position is None:
        return f"{name}: another prompt"
    unit = "token" if pair.compared_by == "tokens" else "character"
    sides = f"A {_side(pair.a, pair)}, B {_side(pair.b, pair)}"
    return f"{name}: {_NAMES[pair.status]} at {unit} {pair.position}: {sides}"


def _side(answer: Answer, pair: Pair) -> str:
    excerpt = _excerpt(answer, pair)
    token_id = _token_id(answer, pair)
    shown = [str(token_id)] if token_id is not None else []
    return " ".join(shown + ([repr(excerpt)] if excerpt else [])) or "ends"


def _difference(pair: Pair) -> dict[str, Any]:
    """A pair that is not identical as JSON values; a missing answer is None."""
    sides = {
        name: answer and {"token_id": _token_id(answer, pair), "text": _excerpt(answer, pair)}
        for name, answer in (("a", pair.a), ("b", pair.b))
    }
    return {
        **pair.key._asdict(),
        "status": pair.status,
        "compared_by": pair.compared_by,
        "position": pair.position,
        **sides,
        "difference": asdict(pair.difference) if pair.difference else None,
    }


def _token_id(answer: Answer, pair: Pair) -> int | None:
    """The first token that differs; None at the answer's end or where tokens were not compared."""
    if pair.compared_by != "tokens" or pair.position is None or answer.token_ids is None:
        return None
    return answer.token_ids[pair.position] if pair.position < len(answer.token_ids) else None


def _excerpt(answer: Answer, pair: Pair) -> str:
    """The answer's text from the first character that differs; none if there is no such."""
    if pair.a is None or pair.b is None:
        return ""
    start = first_difference(pair.a.text, pair.b.text)
    return "" if start is None else answer.text[start : start + _EXCERPT]


def _counts(pairs: Sequence[Pair]) -> dict[str, int]:
    counts = Counter(pair.status for pair in pairs)
    return {"answers": len(pairs)} | {status: counts[status] for status in _NAMES}


def _by_turn(pairs: Sequence[Pair]) -> dict[tuple[str, int], list[Pair]]:
    groups: dict[tuple[str, int], list[Pair]] = {}
    for pair in sorted(pairs, key=lambda pair: (pair.key.task, pair.key.turn)):
        groups.setdefault((pair.key.task, pair.key.turn), []).append(pair)
    return groups


def _compared_by(pairs: Sequence[Pair]) -> str | None:
    """What the answers were compared by: "tokens", "text", "both" or nothing."""
    kinds = {pair.compared_by for pair in pairs if pair.compared_by}
    return "both" if len(kinds) > 1 else next(iter(kinds), None)


def _test(score: ScorePair) -> tuple[str, str]:
    """The test's name and what came of it."""
    if score.discordant is not None and score.p_value is not None:
        only_a, only_b = score.discordant
        return "McNemar", f"p = {score.p_value:.3g} ({only_a} only A, {only_b} only B)"
    if score.interval is not None:
        low, high = score.interval
        return "bootstrap", f"{CONFIDENCE:.0%} from {low:.4g} to {high:.4g}"
    return "", ""
