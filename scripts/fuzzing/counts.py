"""Whether an answer's end, counts, attempts and spans add up."""

from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import chain

from copyspec_eval.types import Generation, Span
from fuzzing.arms import Answer, exact_mode
from fuzzing.cases import Case, Request, text_of


def miscounts(case: Case, request: Request, answer: Answer, is_plain: bool) -> Iterator[str]:
    """What is wrong, in words.

    Args:
        case, request: what was asked.
        answer: to it.
        is_plain: whether it was decoded without drafts.
    """
    facts = {
        "end": _ends_right(case, request, answer.generation),
        "forwards": _forwards_add_up(case, answer),
        "attempts": _attempts_add_up(case, answer),
        "sources": _sources_add_up(answer.generation),
        "spans": _spans_add_up(case, request, answer.generation),
        "seconds": _seconds_add_up(answer.generation),
        "reused": _reused_add_up(case, request, answer.generation, is_plain),
    }
    if is_plain:
        made = answer.generation
        facts["drafts"] = not made.attempts and made.counts.num_forwards == len(made.token_ids)
    yield from (f"{name} do not add up" for name, holds in facts.items() if not holds)


def _ends_right(case: Case, request: Request, made: Generation) -> bool:
    """The first token that can end the answer is its last one."""
    reasons = [_reason(case, request, made.token_ids[: 1 + i]) for i in range(len(made.token_ids))]
    return (
        not any(reasons[:-1])
        and reasons[-1] == made.counts.finish_reason
        and made.counts.num_tokens == len(made.token_ids)
        and made.counts.num_prompt_tokens == len(request.prompt_ids)
    )


def _reason(case: Case, request: Request, token_ids: Sequence[int]) -> str | None:
    if token_ids[-1] in case.eos_ids:
        return "eos"
    if any(stop in text_of(token_ids) for stop in case.stop_strings):
        return "stop"
    return "length" if len(token_ids) >= request.budget else None


def _reused_add_up(case: Case, request: Request, made: Generation, is_plain: bool) -> bool:
    """Never the whole prompt, and nothing without a prefix cache."""
    most = len(request.prompt_ids) - 1 if case.prefix_cache and not is_plain else 0
    return 0 <= (made.counts.num_reused_tokens or 0) <= most


def _forwards_add_up(case: Case, answer: Answer) -> bool:
    """The forwards committed the answer; at a fixed width, the first of them one token."""
    counts, committed = answer.generation.counts, answer.forwards
    return (
        tuple(chain.from_iterable(committed)) == answer.generation.token_ids
        and counts.num_forwards == len(committed)
        and counts.num_prefill_tokens == len(committed[0])
        and all(committed)
        and not (_is_fixed(case) and len(committed[0]) > 1)
    )


def _is_fixed(case: Case) -> bool:
    mode = exact_mode(case, case.batch_size)
    return mode is not None and mode.width is not None


def _attempts_add_up(case: Case, answer: Answer) -> bool:
    """Each forward gave what it accepted and one more token, except where the answer ended."""
    made = answer.generation
    accepted = sum(attempt.num_accepted for attempt in made.attempts)
    native = len(made.token_ids) - accepted
    ended_within = len(answer.forwards) - native
    may_end_within = made.counts.finish_reason != "length" and bool(accepted)
    most = len(answer.forwards) - _is_fixed(case)
    return (
        0 <= ended_within <= may_end_within
        and len(made.attempts) <= most
        and all(0 <= a.num_accepted <= a.num_drafted > 0 for a in made.attempts)
    )


def _sources_add_up(made: Generation) -> bool:
    drafts = made.counts.drafts or {}
    attempts = Counter(attempt.source for attempt in made.attempts)
    return (
        attempts
        == Counter({s: item.num_attempts for s, item in drafts.items() if item.num_attempts})
        and sum(attempt.num_drafted for attempt in made.attempts)
        == sum(item.num_drafted for item in drafts.values())
        and sum(attempt.num_accepted for attempt in made.attempts)
        == sum(item.num_accepted for item in drafts.values())
        and all(item.num_accepted <= item.num_drafted for item in drafts.values())
    )


def _spans_add_up(case: Case, request: Request, made: Generation) -> bool:
    """They cover what was copied, in order, and a copy equals what it was copied from."""
    drafts = made.counts.drafts or {}
    copied = sum(item.num_accepted for source, item in drafts.items() if source != "model")
    ends = [0, *(span.start + span.length for span in made.spans)]
    in_order = all(end <= span.start for end, span in zip(ends, made.spans, strict=False))
    return (
        in_order
        and ends[-1] <= len(made.token_ids)
        and sum(span.length for span in made.spans) == copied
        and all(_is_copy(request, made, span) for span in made.spans)
    )


def _is_copy(request: Request, made: Generation, span: Span) -> bool:
    if span.source < 0:
        return span.length > 0
    text = [*request.prompt_ids, *made.token_ids]
    target = len(request.prompt_ids) + span.start
    return span.length > 0 and all(
        span.source + offset < target + offset
        and text[span.source + offset] == text[target + offset]
        for offset in range(span.length)
    )


def _seconds_add_up(made: Generation) -> bool:
    counts = made.counts
    prefill, decode = counts.prefill_seconds or 0.0, counts.decode_seconds or 0.0
    return prefill > 0 and decode >= 0 and counts.seconds == prefill + decode
