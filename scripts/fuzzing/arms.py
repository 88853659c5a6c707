"""A case's two arms: its requests answered with its drafts, and by plain decoding."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from transformers import GenerationConfig, LogitsProcessorList

from copyspec_eval.decoding.choosing import TokenChooser
from copyspec_eval.decoding.draft_model import DraftModel
from copyspec_eval.decoding.engine import Engine
from copyspec_eval.decoding.exactness import fixed_width
from copyspec_eval.decoding.prefix_cache import PrefixCache
from copyspec_eval.decoding.sequence import Sequence as Decoded
from copyspec_eval.decoding.stopping import StopRule
from copyspec_eval.drafters.base import Drafter, NoDrafter
from copyspec_eval.drafters.registry import DrafterFactory, drafter_factory, longest_draft
from copyspec_eval.drafters.thresholds import StepClock
from copyspec_eval.types import Draft, ExactMode, Generation, Verdict
from fuzzing.cases import Case, Request, text_of
from fuzzing.doubles import ScriptedDrafter
from fuzzing.models import VOCABULARY, draft_model_of, is_invariant, model_of


@dataclass(slots=True)
class Answer:
    """How a request was answered.

    Attributes:
        generation: the engine's answer.
        logits: of each of its tokens, `[vocabulary]`; empty if they are not recorded.
        forwards: the tokens that each forward committed, as the drafter saw them.
    """

    generation: Generation
    logits: list[torch.Tensor]
    forwards: list[list[int]]


class WatchedDrafter:
    """Another drafter, and what it is told.

    Attributes:
        forwards: the tokens that each forward committed.
        is_finished: whether the request was said to be done.
    """

    def __init__(self, drafter: Drafter) -> None:
        self._drafter = drafter
        self.forwards: list[list[int]] = []
        self.is_finished = False

    def start(self, prompt_ids: Sequence[int], earlier: Sequence[Sequence[int]] = ()) -> None:
        """As the drafter."""
        self._drafter.start(prompt_ids, earlier)

    def propose(self, budget: int, longest: int, threshold: float) -> Draft:
        """As the drafter."""
        return self._drafter.propose(budget, longest, threshold)

    def observe(self, token_ids: Sequence[int], verdict: Verdict) -> None:
        """As the drafter."""
        self.forwards.append(list(token_ids))
        self._drafter.observe(token_ids, verdict)

    def finish(self) -> None:
        """As the drafter, once."""
        assert not self.is_finished
        self.is_finished = True
        self._drafter.finish()


class RecordingChooser(TokenChooser):
    """Keeps the logits of every token that it chooses."""

    is_argmax = False  # else the engine takes the argmax without asking

    def __init__(self, processors: LogitsProcessorList, do_sample: bool, seed: int) -> None:
        super().__init__(processors, do_sample, seed)
        self.logits: list[torch.Tensor] = []

    def choose(self, prefix_ids: Sequence[int], logits: torch.Tensor) -> int:
        """As usual."""
        self.logits.append(logits.clone())
        return super().choose(prefix_ids, logits)


def exact_mode(case: Case, batch_size: int) -> ExactMode | None:
    """The case's mode; a fixed width where the model is not invariant."""
    if case.exact is None:
        return None
    if case.exact == "invariant" and is_invariant(case.model, batch_size):
        return ExactMode()
    return ExactMode(fixed_width(longest_draft(case.options)))


def answer_plainly(
    case: Case, requests: Sequence[Request], exact: ExactMode | None, batch_size: int
) -> list[Answer]:
    """Answers of plain decoding, in order."""
    watched = [WatchedDrafter(NoDrafter()) for _ in requests]
    engine = plain_engine(case, exact, batch_size, iter(watched).__next__)
    sequences = [sequence_of(case, request) for request in requests]
    return _answers(engine.generate(sequences), sequences, watched)


def plain_engine(
    case: Case, exact: ExactMode | None, batch_size: int, make_drafter: DrafterFactory = NoDrafter
) -> Engine:
    """An engine that decodes without drafts."""
    model = model_of(case.model)
    return Engine(
        model,
        make_drafter,
        num_draft_tokens=0,
        exact=exact,
        batch_size=batch_size,
        cache=case.model.cache,
    )


def answer_with_drafts(
    case: Case, exact: ExactMode | None, plain: Sequence[Answer]
) -> tuple[Engine, list[Answer]]:
    """The engine that the case asks for, and its answers in the order of the requests."""
    order = list(range(len(case.requests)))
    if case.reverses:
        order.reverse()
    make_unwatched = _drafter_factory(case, [plain[index] for index in order])
    watched: list[WatchedDrafter] = []

    def make_drafter() -> Drafter:
        watched.append(WatchedDrafter(make_unwatched()))
        return watched[-1]

    engine = _drafting_engine(case, exact, make_drafter)
    sequences = [sequence_of(case, case.requests[index]) for index in order]
    middle = len(order) // 2 if case.splits else len(order)
    parts = sequences[:middle], sequences[middle:]
    generations: list[Generation] = []
    for part, others in (parts, parts[::-1]):
        neighbour = [sequence.restarted() for sequence in others]
        generations += engine.generate(part, others=neighbour)
    answers = _answers(generations, sequences, watched)
    return engine, [answers[order.index(index)] for index in range(len(order))]


def sequence_of(case: Case, request: Request) -> Decoded:
    """A request, not yet begun."""
    make_config: Any = GenerationConfig  # its constructor carries no types
    config = make_config(**case.settings)
    model, length = model_of(case.model), len(request.prompt_ids)
    config.max_length = length + request.budget
    model._prepare_special_tokens(config, True, device=model.device)
    processors: LogitsProcessorList = model._get_logits_processor(
        config, input_ids_seq_length=length, device=model.device
    )
    is_recorded = case.records_logits and case.exact is not None
    make_chooser = RecordingChooser if is_recorded else TokenChooser
    chooser = make_chooser(processors, case.settings["do_sample"], request.seed)
    rule = StopRule(request.budget, case.eos_ids, case.stop_strings, text_of)
    return Decoded(request.prompt_ids, rule, chooser)


def _drafter_factory(case: Case, plain: Sequence[Answer]) -> DrafterFactory:
    """A factory of the case's drafters, one for each of the answers in turn."""
    if case.double is None:
        return drafter_factory(case.options)
    doubles = [
        ScriptedDrafter(
            case.double, answer.generation.token_ids, VOCABULARY, case.source("double", index)
        )
        for index, answer in enumerate(plain)
    ]
    return iter(doubles).__next__


def _drafting_engine(case: Case, exact: ExactMode | None, make_drafter: DrafterFactory) -> Engine:
    options, draft_model = case.options, None
    if options.draft_model is not None:
        draft_model = DraftModel(draft_model_of(case.model, options.draft_model), options.delta)
    longest = longest_draft(options)
    most = exact.num_draft_tokens if exact else None
    longest = longest if most is None else min(longest, most)
    return Engine(
        model_of(case.model),
        make_drafter,
        num_draft_tokens=longest,
        exact=exact,
        batch_size=case.batch_size,
        step_clock=StepClock(case.slope or 0.0),
        draft_model=draft_model,
        prefix_cache=PrefixCache(case.prefix_cache) if case.prefix_cache else None,
        cache=case.model.cache,
    )


def _answers(
    generations: Sequence[Generation],
    sequences: Sequence[Decoded],
    watched: Sequence[WatchedDrafter],
) -> list[Answer]:
    answers = []
    for generation, sequence, drafter in zip(generations, sequences, watched, strict=True):
        assert drafter.is_finished
        chooser = sequence.chooser
        # A draft that goes on past the answer's end has choices that are not in it.
        recorded = chooser.logits if isinstance(chooser, RecordingChooser) else []
        logits = recorded[: len(generation.token_ids)]
        answers.append(Answer(generation, logits, drafter.forwards))
    return answers
