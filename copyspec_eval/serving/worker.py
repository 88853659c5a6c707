"""What `--model copyspec-vllm` asks of the proposers, which are in vLLM's workers."""

from __future__ import annotations

from typing import Any

from copyspec_eval.serving.proposer import CopySpecProposer
from copyspec_eval.serving.requests import Drafted, TokenIds


class CopySpecWorker:
    """Mixed into vLLM's own worker class (its `worker_extension_cls`), which calls it by name."""

    model_runner: Any

    def copyspec_drafted(self, answers: list[tuple[TokenIds, TokenIds]]) -> list[Drafted] | None:
        """As `Requests.take_drafted`.

        None in a worker without a proposer: only those of the last pipeline stage have one.
        """
        return self._proposer.requests.take_drafted(answers) if self._proposer else None

    def copyspec_restart(self) -> None:
        """Forget all requests and answers, and record the next ones."""
        if self._proposer:
            self._proposer.restart(is_recording=True)

    @property
    def _proposer(self) -> CopySpecProposer | None:
        return getattr(self.model_runner, "drafter", None)
