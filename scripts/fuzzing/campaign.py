"""Many cases, and what came of them together."""

from __future__ import annotations

import traceback
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any

from fuzzing.cases import Range, draw
from fuzzing.checking import Finding, check


def findings(seed: int, numbers: Iterable[int], among: Range | None = None) -> Iterator[Finding]:
    """Each case of `numbers`, checked; one that raises an error has failed."""
    for number in numbers:
        case = draw(seed, number, among)
        try:
            yield check(case)
        except Exception as error:
            traceback.print_exc()
            failure = " ".join(f"raised {type(error).__name__}: {error}".split())
            yield Finding(case, "raised an error", [failure])


class Totals:
    """Sums over findings, by mode."""

    def __init__(self) -> None:
        self._by_mode: dict[str, Counter[str]] = {}

    def add(self, found: Finding) -> None:
        """Count a finding."""
        counts = self._by_mode.setdefault(found.mode, Counter())
        counts.update(
            cases=1,
            failed=int(bool(found.failures)),
            turns=sum(found.agreements.values()),
            tokens=found.num_tokens,
            drafted=found.num_drafted,
            accepted=found.num_accepted,
            identical=found.agreements["identical"],
            near_tie=found.agreements["near_tie"],
            diverged=found.agreements["diverged"],
            equal_logits=found.num_logits,
            alone=found.num_alone,
        )

    def as_json(self) -> dict[str, Any]:
        """All sums, over all modes and by mode."""
        total: Counter[str] = Counter()
        for counts in self._by_mode.values():
            total.update(counts)
        by_mode = {mode: dict(self._by_mode[mode]) for mode in sorted(self._by_mode)}
        return {**total, "by_mode": by_mode}
