"""A progress bar over requests that shows how fast it goes and what is copied, so far."""

from __future__ import annotations

from collections import Counter

import numpy
from tqdm import tqdm

from copyspec_eval.records import TurnRecord
from copyspec_eval.reports.summary import METRICS
from copyspec_eval.reports.turns import columns

# Figures of sums, so that the sums are all there is to keep.
_SHOWN = ("tokens_per_second", "copied_share", "speedup", "diverged")


class Progress:
    """One bar per call of `generate_until`."""

    def __init__(self, total: int, disable: bool) -> None:
        self._bar = tqdm(total=total, disable=disable, desc="Answering", unit="answer")
        self._metrics = [metric for metric in METRICS if metric.name in _SHOWN]
        self._sums: Counter[str] = Counter()

    def update(self, row: TurnRecord) -> None:
        """One more answer."""
        fields = columns(row)
        names = {name for metric in self._metrics for name in metric.columns}
        self._sums.update({name: fields[name] for name in names if fields[name] is not None})
        shown = {}
        for metric in self._metrics:
            values = [self._sums.get(name, numpy.nan) for name in metric.columns]
            figure = metric.over(numpy.array([values], dtype=float), numpy.arange(1))
            if figure == figure:
                shown[metric.name] = f"{figure:.3g}"
        self._bar.set_postfix(shown, refresh=False)
        self._bar.update()

    def close(self) -> None:
        """Leave the bar as it stands."""
        self._bar.close()
