"""Our drafters inside vLLM: the class of its speculative method `custom_class`.

vLLM imports it by its name in every worker (vLLM pull request 39487):

    vllm serve MODEL --speculative-config '{"method": "custom_class", "num_speculative_tokens": 15,
        "model": "copyspec_eval.serving.proposer.CopySpecProposer"}'

`COPYSPEC_DRAFTING` chooses the drafter, as `--model_args` do: `drafter=suffix,store=true`.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from time import perf_counter
from typing import Any

import numpy
from numpy.typing import NDArray

from copyspec_eval.decoding.earlier_runs import draft_options
from copyspec_eval.drafters.registry import drafter_factory
from copyspec_eval.errors import OptionError
from copyspec_eval.serving.requests import Request, Requests, Row
from copyspec_eval.serving.step_clock import StepClock

VARIABLE = "COPYSPEC_DRAFTING"


class CopySpecProposer:
    """What vLLM asks for drafts after every step.

    Args:
        vllm_config: vLLM's `VllmConfig`.

    Raises:
        OptionError: `COPYSPEC_DRAFTING` names what is not there, or a tree, which vLLM cannot
            verify.
    """

    def __init__(self, vllm_config: Any) -> None:
        options = draft_options(os.environ.get(VARIABLE, ""))
        if options.tree:
            raise OptionError(f"{VARIABLE}: vLLM verifies chains alone; leave tree=true out")
        self._longest: int = vllm_config.speculative_config.num_speculative_tokens
        self._max_length: int = vllm_config.model_config.max_model_len
        self.requests = Requests(drafter_factory(options), self._max_length)
        self._clock = StepClock()
        self._num_tokens = 0
        self._ended: float | None = None

    def load_model(self, *args: Any, **kwargs: Any) -> None:
        """There is no model to load."""

    def propose(
        self,
        sampled_token_ids: Sequence[Sequence[int]],
        num_tokens_no_spec: NDArray[numpy.int32],
        token_ids_cpu: NDArray[numpy.int32],
        slot_mappings: Any = None,
    ) -> list[list[int]]:
        """Draft tokens of each row; none for a row whose prompt is not read yet, or that is full.

        Args:
            sampled_token_ids: what the step has added to each row.
            num_tokens_no_spec: `[rows]`, tokens of prompt and output, these included.
            token_ids_cpu: `[rows, longest]`, prompt and output of each row.
            slot_mappings: not used.
        """
        started = perf_counter()
        rows: list[Row | None] = []
        for row, sampled in enumerate(sampled_token_ids):
            length = int(num_tokens_no_spec[row])
            there = bool(sampled) and length < self._max_length
            rows.append((token_ids_cpu[row, :length], len(sampled)) if there else None)
        before = self.requests.running
        taken = self.requests.take(rows)
        self._time(started, taken, before)
        running = len(self.requests.running)
        thresholds = self._clock.thresholds(running, self._longest) if running else ()
        drafts = [request.propose(thresholds) if request else [] for request in taken]
        self._num_tokens = running + sum(map(len, drafts))
        self._ended = perf_counter()
        return drafts

    def _time(
        self, started: float, taken: Sequence[Request | None], before: Sequence[Request]
    ) -> None:
        """Learn from the step that has just ended, if it read no prompt."""
        if self._ended is not None and None not in taken and {*taken} == {*before}:
            self._clock.add(self._num_tokens, started - self._ended)
