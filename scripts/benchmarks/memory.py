"""Peak memory of this process or its accelerator."""

import gc
from pathlib import Path

import torch

_PROCESS = Path("/proc/self")


class PeakMemory:
    """The highest use of memory since it was made, in bytes.

    On an accelerator what torch has allocated there; else the resident size of the process, which
    only Linux reports; 0 elsewhere.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        gc.collect()
        if device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(device)
        elif (_PROCESS / "clear_refs").exists():
            (_PROCESS / "clear_refs").write_text("5")  # resets the peak, see proc(5)

    @property
    def num_bytes(self) -> int:
        """See above."""
        if self._device.type == "cuda":
            return int(torch.cuda.max_memory_allocated(self._device))
        if not (_PROCESS / "status").exists():
            return 0
        lines = (_PROCESS / "status").read_text().splitlines()
        [peak] = [line for line in lines if line.startswith("VmHWM:")]
        return int(peak.split()[1]) * 1024
