"""Our drafters inside vLLM: the class of its speculative method `custom_class`.

vLLM imports it by its name in every worker (vLLM pull request 39487):

    vllm serve MODEL --speculative-config '{"method": "custom_class", "num_speculative_tokens": 31,
        "model": "copyspec_eval.serving.proposer.CopySpecProposer"}'

`COPYSPEC_DRAFTING` chooses the drafter, as `--model_args` do: `drafter=suffix,store=true`.
"""

import os
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any, NamedTuple

import numpy
from numpy.typing import NDArray

from copyspec_eval.decoding.sequence import Sequence as Decoded
from copyspec_eval.decoding.stopping import StopRule
from copyspec_eval.drafters import registry
from copyspec_eval.drafters.base import NoDrafter
from copyspec_eval.drafters.thresholds import StepClock
from copyspec_eval.errors import OptionError
from copyspec_eval.reports.earlier_runs import TokenIds, read_earlier
from copyspec_eval.types import Attempt, Draft, DraftOptions, Span, Verdict

# Tokens of prompt and output before the step, and after it.
Row = tuple[NDArray[numpy.int32], NDArray[numpy.int32]]

VARIABLE = "COPYSPEC_DRAFTING"
NAME, WORKER = f"{__name__}.CopySpecProposer", f"{__name__}.CopySpecWorker"
# The longest draft, in tokens: vLLM keeps room for as many in every step.
NUM_DRAFT_TOKENS = 31


class Drafted(NamedTuple):
    """What was drafted for an answer, as in `Generation`."""

    attempts: Sequence[Attempt] = ()
    spans: Sequence[Span] = ()


class CopySpecProposer:
    """What vLLM asks for drafts after every step; `requests` are the recognised ones."""

    def __init__(self, vllm_config: Any) -> None:
        self._options = registry.parse_draft_options(os.environ.get(VARIABLE, ""))
        self._longest: int = vllm_config.speculative_config.num_speculative_tokens
        self._max_length: int = vllm_config.model_config.max_model_len
        self._clock = StepClock()
        self.restart()

    def restart(self, is_recording: bool = False) -> None:
        """Forget all requests and their answers, but not how long steps take."""
        self.requests = Requests(drafters(self._options), self._max_length, is_recording)
        self._step = 0, 0  # rows and draft tokens of the one under way
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
            text = token_ids_cpu[row, : int(num_tokens_no_spec[row])]
            drafts_next = bool(sampled) and len(text) < self._max_length
            rows.append((text[: len(text) - len(sampled)], text) if drafts_next else None)
        taken = self.requests.take(rows)
        if self._ended is not None and self.requests.is_steady:
            self._clock.add(*self._step, started - self._ended)
        running = len(self.requests.running)
        threshold = self._clock.threshold(max(1, running))
        drafts = [each.propose(self._longest, threshold) if each else [] for each in taken]
        self._step = running, sum(map(len, drafts))
        self._ended = perf_counter()
        return drafts


def drafters(options: DraftOptions) -> registry.DrafterFactory:
    """As `drafter_factory`; raises if vLLM cannot verify such drafts, or for an earlier run."""
    if options.tree:
        raise OptionError("vLLM verifies only chains; leave tree=true out")
    if options.draft_model is not None:
        raise OptionError(
            "draft_model=… does not work inside vLLM, which has its own; leave it out"
        )
    answers = [answer.token_ids for answer in read_earlier(options.store_paths, [])]
    token_ids = [ids for ids in answers if ids is not None]
    if len(token_ids) < len(answers):
        raise OptionError(
            f"store={registry.store_text(options.store_paths)}: answers without token ids; name a "
            "run of --model copyspec or copyspec-vllm"
        )
    return registry.drafter_factory(options, token_ids)


class CopySpecWorker:
    """Asks the proposer for `--model copyspec-vllm`; mixed into vLLM's own worker class by name."""

    model_runner: Any

    def copyspec_drafted(self, answers: list[tuple[TokenIds, TokenIds]]) -> list[Drafted] | None:
        """As `Requests.take_drafted`; None but in the last pipeline stage, which has a proposer."""
        return self._proposer.requests.take_drafted(answers) if self._proposer else None

    def copyspec_restart(self) -> None:
        if self._proposer:
            self._proposer.restart(is_recording=True)

    @property
    def _proposer(self) -> CopySpecProposer | None:
        return getattr(self.model_runner, "drafter", None)


class Request:
    """A request, recognised by its `text`; `draft` is the last one, not yet verified."""

    def __init__(self, prompt_ids: TokenIds, room: int, make: registry.DrafterFactory) -> None:
        self.text = numpy.array(prompt_ids, numpy.int32)
        self.sequence = Decoded(prompt_ids, StopRule(max(1, room)))
        self.sequence.start(make())
        self.draft = Draft()
        self._starts: list[int] = []
        self._make = make

    def go_on(self, text: NDArray[numpy.int32]) -> None:
        """Take what was added: the draft's accepted tokens, one more, and later steps' tokens."""
        sequence, token_ids = self.sequence, text[len(self.text) :].tolist()
        self.text, count = text.copy(), len(token_ids)
        draft, self.draft = self.draft, Draft()
        # If the engine has cut the draft, the token after it may be the draft's next one.
        if len(draft.token_ids) >= count and draft.token_ids[count - 1] == token_ids[-1]:
            draft = draft.cut(count - 1)
        before = len(sequence.output_ids)
        if draft.token_ids:
            self._starts.append(before)
        sequence.commit(draft, token_ids.__getitem__)
        # None are left, unless the engine went on without asking for drafts.
        for token_id in token_ids[len(sequence.output_ids) - before :]:
            if sequence.finish_reason is None:
                sequence.commit(Draft(), [token_id].__getitem__)

    def propose(self, longest: int, threshold: float) -> list[int]:
        self.draft = self.sequence.propose(longest, threshold)
        return list(self.draft.token_ids)

    def end(self) -> None:
        """Leave the rows; the draft stays: if a step had no room, the engine verifies it later."""
        self.sequence.drafter.finish()
        self.sequence.drafter = NoDrafter()  # its index is large

    def resume(self) -> None:
        """Come back after being preempted, or left out of a step."""
        sequence = self.sequence
        sequence.drafter = self._make()
        sequence.drafter.start(sequence.prompt_ids)
        if sequence.output_ids:
            sequence.drafter.observe(sequence.output_ids, Verdict(0, sequence.output_ids[-1]))

    def drafted(self, text: NDArray[numpy.int32], num_prompt_tokens: int) -> Drafted:
        """What was drafted for the answer, up to its end; `text` is the whole prompt and answer."""
        sequence = self.sequence
        if len(text) > len(self.text):
            self.go_on(text)
        before = len(sequence.prompt_ids) - num_prompt_tokens
        length = len(text) - len(sequence.prompt_ids)
        attempts = [
            attempt._replace(num_accepted=min(attempt.num_accepted, length - start))
            for start, attempt in zip(self._starts, sequence.attempts, strict=True)
            if start < length
        ]
        spans = [
            Span(before + start, min(count, length - start), source)
            for start, count, source in sequence.spans
            if start < length
        ]
        return Drafted(attempts, spans)


@dataclass
class Requests:
    """Which request is in which row: the one whose tokens the row extends, or a new one.

    Rows change places between steps. A request in no row has ended or was left out, and may come
    back. The engine drops the last draft of a preempted request without notice, so that draft
    counts as rejected. `running` are the requests of the last step; it `is_steady` if it continued
    exactly those of the step before.

    When recording, `ended` remembers requests in no row until `take_drafted`. A server must not, or
    it would remember all answers: there, a request that comes back is new, and drafts alike.
    """

    make: registry.DrafterFactory
    max_length: int
    is_recording: bool
    running: list[Request] = field(default_factory=list)
    ended: list[Request] = field(default_factory=list)
    is_steady: bool = False

    def take(self, rows: Sequence[Row | None]) -> list[Request | None]:
        """The request of each row, with the tokens that the step has added; None for None."""
        by_length: defaultdict[int, list[Request]] = defaultdict(list)
        for request in self.running:
            by_length[len(request.text)].append(request)
        taken = [row and _next(row[0], by_length) for row in rows]
        left = [request for same in by_length.values() for request in same]
        self.is_steady = not left and None not in taken
        for number, row in enumerate(rows):
            if row is not None:
                taken[number] = each = taken[number] or self._other(row[0], left)
                each.go_on(row[1])
        self.running = [request for request in taken if request is not None]
        for request in left:
            request.end()
        if self.is_recording:
            self.ended += left
        return taken

    def take_drafted(self, answers: Iterable[tuple[TokenIds, TokenIds]]) -> list[Drafted]:
        """What was drafted for each prompt and answer, by one request each; then forget all."""
        for request in self.running:
            request.end()
        left = [*self.ended, *self.running]
        self.running, self.ended = [], []
        drafted = []
        for prompt_ids, answer_ids in answers:
            text = numpy.array([*prompt_ids, *answer_ids], numpy.int32)
            # A prompt can have several answers that begin alike.
            alike = [
                (len(each.sequence.prompt_ids), abs(len(each.text) - len(text)), number)
                for number, each in enumerate(left)
                if len(prompt_ids) <= len(each.sequence.prompt_ids) and _agree(text, each.text)
            ]
            # For an answer without a request, the engine never asked for a draft.
            nearest = left.pop(min(alike)[-1]) if alike else None
            drafted.append(nearest.drafted(text, len(prompt_ids)) if nearest else Drafted())
        return drafted

    def _other(self, before: NDArray[numpy.int32], left: list[Request]) -> Request:
        # The row may be several steps on: the engine does not ask for drafts after each.
        shorter = [each for each in (*left, *self.ended[::-1]) if len(each.text) <= len(before)]
        if not (begun := [each for each in shorter if _agree(each.text, before)]):
            return Request(before.tolist(), self.max_length - len(before), self.make)
        request = max(begun, key=lambda each: len(each.text))
        if request in left:
            left.remove(request)
        else:
            self.ended.remove(request)
            request.resume()
        return request


def _next(before: NDArray[numpy.int32], by_length: dict[int, list[Request]]) -> Request | None:
    """Take the request of exactly these tokens out of `by_length`."""
    alike = by_length[len(before)]
    if (request := next((each for each in alike if _agree(each.text, before)), None)) is not None:
        alike.remove(request)
    return request


def _agree(text: NDArray[numpy.int32], other: NDArray[numpy.int32]) -> bool:
    last = min(len(text), len(other)) - 1
    # The last token is compared first, since texts that only begin alike seldom share it.
    return bool(text[last] == other[last]) and numpy.array_equal(text[:last], other[:last])
