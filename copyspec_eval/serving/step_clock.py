"""What a step of another engine takes, learned from the steps that it has taken."""

from __future__ import annotations

from dataclasses import dataclass

from copyspec_eval.drafters.thresholds import acceptance_thresholds

_DECAY = 0.995
"""What a step's weight is multiplied by at the next one: some 200 steps count."""
_FEWEST = 16
_COST = 0.02
"""Of a draft token, in steps, until there were enough steps."""


@dataclass(slots=True)
class StepClock:
    """A line through the seconds of steps over their numbers of tokens, by least squares.

    The fields are sums over the steps, the last two of tokens² and of tokens times seconds.

    >>> clock = StepClock()
    >>> for tokens in (1, 9) * 8:
    ...     clock.add(tokens, seconds=0.1 + 0.01 * tokens)
    >>> [round(threshold, 3) for threshold in clock.thresholds(num_rows=4, longest=2)]
    [0.429, 0.429]
    """

    weight: float = 0.0
    tokens: float = 0.0
    seconds: float = 0.0
    squares: float = 0.0
    products: float = 0.0

    def add(self, tokens: int, seconds: float) -> None:
        """Count a step of so many tokens, of all rows together."""
        terms = 1.0, tokens, seconds, tokens * tokens, tokens * seconds
        for name, value in zip(self.__slots__, terms, strict=True):
            setattr(self, name, _DECAY * getattr(self, name) + value)

    def thresholds(self, num_rows: int, longest: int) -> tuple[float, ...]:
        """As `acceptance_thresholds`, for a draft in a step of `num_rows` rows."""
        first, slope = self._line(num_rows)
        return acceptance_thresholds({0: first, longest: first + num_rows * slope * longest})

    def _line(self, num_rows: int) -> tuple[float, float]:
        """Seconds of a step with one token in each row, and of every further token."""
        spread = self.weight * self.squares - self.tokens**2
        if self.weight < _FEWEST * _DECAY**_FEWEST or spread <= 1e-9 * self.weight * self.squares:
            return 1.0, _COST
        slope = (self.weight * self.products - self.tokens * self.seconds) / spread
        slope = max(0.0, slope)
        mean = (self.seconds + slope * (num_rows * self.weight - self.tokens)) / self.weight
        # A line through noisy points can be steeper than any step can be.
        return max(mean, num_rows * slope, 1e-9), slope
