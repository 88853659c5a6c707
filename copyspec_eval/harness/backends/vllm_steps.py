"""What vLLM reports of an answer: its steps, and what they drafted and accepted."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from copyspec_eval.types import Attempt, DraftSource

_COPYING = {"custom_class", "ngram", "ngram_gpu", "suffix"}
"""vLLM's speculative methods that copy. `suffix` copies from earlier answers, too, and does not
tell them apart."""


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
    source: DraftSource,
) -> tuple[Attempt, ...]:
    """The forwards of an answer that verified a draft.

    vLLM counts what it accepted before it cuts the answer at its end, so the last is cut here.
    Every forward gives what was accepted and a token of the model's own; the last may give less.

    Args:
        drafted, accepted: of each forward with a draft, as vLLM counts them.
        num_tokens: of the answer.
        num_forwards: that gave it tokens; fewer, where not all of them are known, cut too little.
        source: of all drafts.

    >>> attempts([4, 5], [1, 5], num_tokens=5, num_forwards=3, source="context")[-1]
    Attempt(num_drafted=5, num_accepted=2, source='context')
    """
    if not drafted:
        return ()
    accepted = list(accepted)
    beyond = num_forwards + sum(accepted) - num_tokens
    accepted[-1] -= min(accepted[-1], max(0, beyond - 1))
    return tuple(Attempt(*counts, source) for counts in zip(drafted, accepted, strict=True))


def method_source(config: Any) -> DraftSource | None:
    """Where drafts come from by vLLM's `VllmConfig`; None if there are none."""
    method = getattr(getattr(config, "speculative_config", None), "method", None)
    return method and ("context" if method in _COPYING else "model")
