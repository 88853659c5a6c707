"""Our drafters inside vLLM: the class of its speculative method `custom_class`.

vLLM imports it by its name in every worker (vLLM pull request 39487):

    vllm serve MODEL --speculative-config '{"method": "custom_class", "num_speculative_tokens": 31,
        "model": "copyspec_eval.serving.proposer.CopySpecProposer"}'

`COPYSPEC_DRAFTING` chooses the drafter, as `--model_args` do: `drafter=suffix,store=true`.
"""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from time import perf_counter
from typing import Any

import numpy
from numpy.typing import NDArray

from copyspec_eval.drafters.options import parse_draft_options, store_text
from copyspec_eval.drafters.registry import DrafterFactory, drafter_factory
from copyspec_eval.drafters.thresholds import acceptance_thresholds
from copyspec_eval.errors import OptionError
from copyspec_eval.reports.earlier_runs import read_earlier
from copyspec_eval.serving.requests import Drafted, Requests, Row, TokenIds
from copyspec_eval.types import DraftOptions

VARIABLE = "COPYSPEC_DRAFTING"
NAME, WORKER = f"{__name__}.CopySpecProposer", f"{__name__}.CopySpecWorker"
# The longest draft, in tokens: vLLM keeps room for as many in every step.
NUM_DRAFT_TOKENS = 31

_DECAY = 0.995  # by which a step's weight falls at the next one: some 200 steps count
_FEWEST = 16
_COST = 0.02  # of a draft token, in steps, until there were enough steps


class CopySpecProposer:
    """What vLLM asks for drafts after every step; `requests` are the recognised ones."""

    def __init__(self, vllm_config: Any) -> None:
        self._options = parse_draft_options(os.environ.get(VARIABLE, ""))
        self._longest: int = vllm_config.speculative_config.num_speculative_tokens
        self._max_length: int = vllm_config.model_config.max_model_len
        self._clock = StepClock()
        self.restart()

    def restart(self, is_recording: bool = False) -> None:
        """Forget all requests and their answers, but not how long steps take."""
        self.requests = Requests(drafters(self._options), self._max_length, is_recording)
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
        """Draft tokens of each row; none while a row's prompt is being read, or if it is full.

        The step has added `sampled_token_ids`. Of a row of `token_ids_cpu`, `[rows, longest]`, its
        prompt and output now fill `num_tokens_no_spec` tokens, `[rows]`.
        """
        started = perf_counter()
        rows: list[Row | None] = []
        for row, sampled in enumerate(sampled_token_ids):
            length = int(num_tokens_no_spec[row])
            drafts_next = bool(sampled) and length < self._max_length
            rows.append((token_ids_cpu[row, :length], len(sampled)) if drafts_next else None)
        taken = self.requests.take(rows)
        if self._ended is not None and self.requests.is_steady:
            self._clock.add(self._num_tokens, started - self._ended)
        running = len(self.requests.running)
        thresholds = self._clock.thresholds(running, self._longest) if running else ()
        drafts = [request.propose(thresholds) if request else [] for request in taken]
        self._num_tokens = running + sum(map(len, drafts))
        self._ended = perf_counter()
        return drafts


def drafters(options: DraftOptions) -> DrafterFactory:
    """As `drafter_factory`; raises if vLLM cannot verify such drafts, or for an earlier run."""
    if options.tree or options.recycle:
        raise OptionError("vLLM verifies only chains; leave tree=true and recycle=true out")
    if options.draft_model is not None:
        raise OptionError(
            "draft_model=… does not work inside vLLM, which has its own; leave it out"
        )
    answers = [answer.token_ids for answer in read_earlier(options.store_paths, [])]
    token_ids = [ids for ids in answers if ids is not None]
    if len(token_ids) < len(answers):
        raise OptionError(
            f"store={store_text(options.store_paths)}: answers without token ids; name a run of "
            "--model copyspec or copyspec-vllm"
        )
    return drafter_factory(options, token_ids)


class CopySpecWorker:
    """Asks the proposer for `--model copyspec-vllm`; mixed into vLLM's own worker class by name."""

    model_runner: Any

    def copyspec_drafted(self, answers: list[tuple[TokenIds, TokenIds]]) -> list[Drafted] | None:
        """As `Requests.take_drafted`; None but in the last pipeline stage, which has a proposer."""
        return self._proposer.requests.take_drafted(answers) if self._proposer else None

    def copyspec_restart(self) -> None:
        """Forget all requests and answers, and record the next ones."""
        if self._proposer:
            self._proposer.restart(is_recording=True)

    @property
    def _proposer(self) -> CopySpecProposer | None:
        return getattr(self.model_runner, "drafter", None)


@dataclass(slots=True)
class StepClock:
    """A line through the seconds of an engine's steps over their tokens, by least squares.

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
        slope = max(0.0, (self.weight * self.products - self.tokens * self.seconds) / spread)
        mean = (self.seconds + slope * (num_rows * self.weight - self.tokens)) / self.weight
        # A line through noisy points can be steeper than any step can be.
        return max(mean, num_rows * slope, 1e-9), slope
