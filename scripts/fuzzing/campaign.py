"""Many cases, and what came of them together."""

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

    def add(self, actual: Finding) -> None:
        """Count a finding."""
        counts = self._by_mode.setdefault(actual.mode, Counter())
        counts.update(
            cases=1,
            failed=int(bool(actual.failures)),
            turns=sum(actual.agreements.values()),
            tokens=actual.num_tokens,
            drafted=actual.num_drafted,
            accepted=actual.num_accepted,
            identical=actual.agreements["identical"],
            near_tie=actual.agreements["near_tie"],
            diverged=actual.agreements["diverged"],
            equal_logits=actual.num_logits,
            alone=actual.num_alone,
        )

    def as_json(self) -> dict[str, Any]:
        """All sums, over all modes and by mode."""
        total: Counter[str] = Counter()
        for counts in self._by_mode.values():
            total.update(counts)
        by_mode = {mode: dict(self._by_mode[mode]) for mode in sorted(self._by_mode)}
        return {**total, "by_mode": by_mode}
