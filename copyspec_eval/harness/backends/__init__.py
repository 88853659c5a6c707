"""What stock backends report of their answers besides the text; each class is mixed into one.

hf        token ids, forwards (of one row at a time), prefill and decode
vllm      token ids, forwards, what was drafted and accepted
servers   token counts and, where they report them, prefill, drafts and token ids
others    nothing, so that there are seconds and no rates
"""

from collections.abc import Sequence
from dataclasses import replace
from time import perf_counter
from typing import Any, NamedTuple
from unittest import mock

from lm_eval.api.instance import Instance
from lm_eval.api.model import LM, CacheHook

from copyspec_eval.errors import OptionError
from copyspec_eval.harness.recorded import parameters
from copyspec_eval.loops import looped_tokens
from copyspec_eval.records import BaselineTurn
from copyspec_eval.types import Attempt, DraftCounts, DraftSource, FinishReason, Span, TurnCounts


class TimedAnswer(NamedTuple):
    """Fields as in `Generation` and `TurnRecord`; `token_ids` is None where none are reported."""

    counts: TurnCounts
    token_ids: tuple[int, ...] | None = None
    prompt_ids: tuple[int, ...] = ()
    attempts: tuple[Attempt, ...] = ()
    spans: tuple[Span, ...] = ()
    baseline: BaselineTurn | None = None


class Backend(LM):
    """Mixed into any backend: the clock covers all that it does, tokenising and network too."""

    fills_batches = False  # whether it may choose `batch_size=auto` itself
    asks_in_parallel = False  # whether each of several requests under way can be timed
    refills = False  # whether a request that ends makes room for the next one in the batch

    def ask(self, group: list[Instance]) -> tuple[list[str], list[TimedAnswer]]:
        """Texts and figures; lm-eval's cache is off, since it gets answers with their records."""
        generate = super().generate_until
        quiet = {"disable_tqdm": True} if "disable_tqdm" in parameters(generate) else {}
        with mock.patch.object(self, "cache_hook", CacheHook(None)):
            started = perf_counter()
            texts: list[str] = generate(group, **quiet)
            seconds = perf_counter() - started
        return texts, self.timed_answers(group, seconds)

    def timed_answers(self, group: list[Instance], seconds: float) -> list[TimedAnswer]:
        """What is reported of the answers just given; `seconds` is what the call took."""
        counts = TurnCounts(seconds=seconds / len(group), latency_seconds=seconds)
        return [TimedAnswer(counts)] * len(group)

    @classmethod
    def check_rows(cls, arguments: dict[str, Any]) -> None:
        """Refuse, before anything is loaded, settings under which no answer can be timed."""
        size, is_auto = arguments["batch_size"], arguments["batch_size"] == "auto"
        if not ((cls.fills_batches and is_auto) or (str(size).isdecimal() and int(size) >= 1)):
            raise OptionError(
                f"batch_size={size!r} is not a number of at least 1; sharing out a batch's time "
                "needs the number of its rows: pass --batch_size 1"
            )
        if not (cls.asks_in_parallel or is_one(arguments.get("num_concurrent"))):
            raise OptionError(
                f"num_concurrent={arguments['num_concurrent']}: this backend cannot time requests "
                "that are under way at the same time; leave num_concurrent out"
            )

    def check_request(self, gen_kwargs: dict[str, Any]) -> None:
        """Refuse, before any is answered, a request whose answer would be wrong."""

    def rows(self) -> int:
        """Requests that are answered side by side; 1 if the model does not report it."""
        try:
            size = str(getattr(self, "_batch_size", None) or self.batch_size)
        except (AttributeError, NotImplementedError):
            size = "1"
        return int(size) if size.isdecimal() else 1

    def loaded(self) -> dict[str, Any]:
        """Fields of `RunSpec` that the model's attributes do not show."""
        return {}

    def length(self, prompt: str) -> int:
        return len(prompt)

    def processors(self, gen_kwargs: dict[str, Any]) -> list[str] | None:
        """Names of a request's logits processors, for the manifest; None if not known."""
        return None


def is_one(num_concurrent: object) -> bool:
    return str(num_concurrent) in ("None", "0", "1")


def with_tokens(
    counts: TurnCounts, num_prompt: int, token_ids: Sequence[int], reason: FinishReason | None
) -> TimedAnswer:
    looped = looped_tokens(token_ids) if reason == "length" else 0
    known: dict[str, Any] = {"num_tokens": len(token_ids), "num_looped_tokens": looped}
    known |= {"num_prompt_tokens": num_prompt, "finish_reason": reason}
    return TimedAnswer(replace(counts, **known), tuple(token_ids))


def finish_reason_from(reason: str | None, stop_reason: object) -> FinishReason | None:
    """vLLM reports "stop" for an EOS too, without a stop string."""
    if reason == "stop":
        return "stop" if isinstance(stop_reason, str) else "eos"
    return "length" if reason == "length" else None


def counts_by_source(attempts: Sequence[Attempt]) -> dict[DraftSource, DraftCounts]:
    numbers: dict[DraftSource, list[int]] = {}
    for drafted, accepted, source in attempts:
        before = numbers.get(source, (0, 0, 0))
        numbers[source] = [a + b for a, b in zip(before, (1, drafted, accepted), strict=True)]
    return {source: DraftCounts(*each) for source, each in numbers.items()}
