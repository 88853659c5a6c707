"""Wall-clock time, split among the sequences that it was spent on."""

from time import perf_counter

import torch


def wait_for(device: torch.device) -> None:
    """Wait until all accelerators of a device's type have finished their queued work."""
    if device.type == "cpu":
        return
    module = torch.get_device_module(device)
    if device.type == "mps":
        module.synchronize()  # takes no index: there is one device
        return
    for number in range(module.device_count()):
        module.synchronize(number)


class Stopwatch:
    """Seconds in laps without gaps, and `elapsed` in all of them; `restart` leaves a gap."""

    def __init__(self) -> None:
        self.elapsed = 0.0
        self.restart()

    def restart(self) -> None:
        self._last = perf_counter()

    def lap(self) -> float:
        now = perf_counter()
        seconds, self._last = now - self._last, now
        self.elapsed += seconds
        return seconds
