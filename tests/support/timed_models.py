"""Models with a clock, and what they are asked."""

from typing import Any

from lm_eval.api.instance import Instance

from copyspec_eval.harness.timed import TimedLM
from copyspec_eval.records import TurnRecord, record_of

CONTEXTS = ["Once upon a time", "a b a b a b a b", "To be, or not to be, that is", "x", "é à ü"]


def make(options: str, **configured: Any) -> Any:
    return TimedLM.create_from_arg_string(options, configured)


def instances(
    settings: dict[str, Any] | None = None, repeats: int = 1, contexts: Any = CONTEXTS
) -> list[Instance]:
    """One instance per context, listed `repeats` times as lm-eval lists it."""
    settings = {"until": [], "max_gen_toks": 40, "do_sample": False, **(settings or {})}
    made = [
        Instance("generate_until", {"category": "c"}, (text, settings), 0, ("task", doc, repeats))
        for doc, text in enumerate(contexts)
    ]
    return [instance for instance in made for _ in range(repeats)]


def rows(answers: list[str]) -> list[TurnRecord]:
    records = [record_of(answer) for answer in answers]
    assert None not in records
    return [record for record in records if record is not None]


def check_counts(row: TurnRecord) -> None:
    """Every token is of the model's own or of a draft, and every copy has its place."""
    accepted = sum(attempt.num_accepted for attempt in row.attempts)
    assert row.counts.num_forwards is not None
    assert row.counts.num_tokens is not None
    # The last forward may give nothing of the model's own: the answer ended within its draft.
    assert row.counts.num_forwards + accepted - row.counts.num_tokens in (0, 1)
    assert sum(span.length for span in row.spans) == accepted
