"""Wall-clock time, split among the sequences that it was spent on."""

from __future__ import annotations

from time import perf_counter


class Stopwatch:
    """Time in laps without gaps; `restart` leaves a gap on purpose.

    Attributes:
        elapsed: seconds of all laps together.
    """

    def __init__(self) -> None:
        self.elapsed = 0.0
        self.restart()

    def restart(self) -> None:
        """Begin a lap now; the time since the last one is not counted."""
        self._last = perf_counter()

    def lap(self) -> float:
        """Seconds since the last lap ended, or since `restart`."""
        now = perf_counter()
        seconds, self._last = now - self._last, now
        self.elapsed += seconds
        return seconds
