"""What vLLM reports of an answer: its steps, and what they drafted and accepted."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

from copyspec_eval.types import Attempt, DraftSource, Span

_COPYING = {"custom_class", "ngram", "ngram_gpu", "suffix"}
"""vLLM's speculative methods that copy. `suffix` copies from earlier answers, too, and does not
tell them apart."""


class Copied(NamedTuple):
    """What is known of an answer's drafts beside their numbers.

    Attributes:
        sources: of each draft, or one for all; empty if there was none.
        spans: as in `Generation`.
    """

    sources: Sequence[DraftSource] = ()
    spans: tuple[Span, ...] = ()


@contextmanager
def watched(engine: Any) -> Iterator[dict[str, list[int]]]:
    """The tokens that each forward gave a request which vLLM's `LLMEngine` answers, by its id.

    Those that the answer has; forwards that gave it none are left out. Nothing is seen where the
    engine has no output processor of that name.
    """
    num_tokens: dict[str, list[int]] = {}
    processor = getattr(engine, "output_processor", None)
    process = getattr(processor, "process_outputs", None)
    if processor is None or process is None:
        yield num_tokens
        return

    def noted(outputs: Sequence[Any], *args: Any, **kwargs: Any) -> Any:
        # An aborted request may still be given tokens, and none of them is in its answer.
        states = {
            each.request_id: processor.request_states.get(each.request_id) for each in outputs
        }
        processed = process(outputs, *args, **kwargs)
        for output in outputs:
            state = states[output.request_id]
            # What follows a stop string has been taken away by now.
            if state is not None and output.new_token_ids:
                name = getattr(state, "external_req_id", output.request_id)
                num_tokens.setdefault(name, []).append(len(output.new_token_ids))
        return processed

    processor.process_outputs = noted
    try:
        yield num_tokens
    finally:
        del processor.process_outputs


def attempts(
    drafted: Sequence[int],
    accepted: Sequence[int],
    num_tokens: int,
    num_forwards: int,
    sources: Sequence[DraftSource],
) -> tuple[Attempt, ...]:
    """The forwards of an answer that verified a draft.

    vLLM counts what it accepted before it cuts the answer at its end, so the last is cut here.
    Every forward gives what was accepted and a token of the model's own; the last may give less.

    Args:
        drafted, accepted: of each forward with a draft, as vLLM counts them.
        num_tokens: of the answer.
        num_forwards: that gave it tokens; fewer, where not all of them are known, cut too little.
        sources: of each draft, or one for all.

    >>> attempts([4, 5], [1, 5], num_tokens=5, num_forwards=3, sources=["context"])[-1]
    Attempt(num_drafted=5, num_accepted=2, source='context')
    """
    if not drafted:
        return ()
    accepted = list(accepted)
    beyond = num_forwards + sum(accepted) - num_tokens
    accepted[-1] -= min(accepted[-1], max(0, beyond - 1))
    if len(sources) != len(drafted):
        sources = [sources[0] if sources else "context"] * len(drafted)
    return tuple(map(Attempt, drafted, accepted, sources))


def method_source(engine: Any) -> DraftSource | None:
    """Where the drafts of vLLM's `LLMEngine` come from; None if it makes none."""
    config = getattr(getattr(engine, "vllm_config", None), "speculative_config", None)
    if config is None:
        return None
    return "context" if config.method in _COPYING else "model"
