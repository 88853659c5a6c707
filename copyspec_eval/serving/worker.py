"""What `--model copyspec-vllm` asks of the proposers, which are in vLLM's workers."""

from __future__ import annotations

from typing import Any

from copyspec_eval.serving.proposer import CopySpecProposer
from copyspec_eval.serving.requests import Copies


class CopySpecWorker:
    """Mixed into vLLM's own worker class (its `worker_extension_cls`), which calls it by name."""

    model_runner: Any

    def copyspec_copies(self) -> list[Copies] | None:
        """What was copied in the requests since the last call; all of them have ended.

        None in a worker without a proposer: only those of the last pipeline stage have one.
        """
        return self._proposer.requests.take_copies() if self._proposer else None

    def copyspec_restart(self) -> None:
        """Forget all requests and answers, as before the first one."""
        if self._proposer:
            self._proposer.restart()

    @property
    def _proposer(self) -> CopySpecProposer | None:
        return getattr(self.model_runner, "drafter", None)
