"""What is timed and counted of lm-eval's `vllm`."""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from time import perf_counter
from typing import Any
from unittest import mock

from lm_eval.api.instance import Instance

from copyspec_eval import provenance
from copyspec_eval.errors import OptionError
from copyspec_eval.harness import backends
from copyspec_eval.serving.proposer import Drafted
from copyspec_eval.types import Attempt, DraftSource, TurnCounts

_TEMPERATURE = 1.0  # vLLM's own, where a request has none
# vLLM's speculative methods that copy; `suffix` does not report what is from earlier answers.
_COPYING = {"custom_class", "ngram", "ngram_gpu", "suffix"}


class VLLMBackend(backends.Backend):
    """The clock covers generation alone.

    Forwards are counted where vLLM's engine hands out their tokens. Times of a request are by
    vLLM's clock, and drafts as it counts them for each request (vLLM pull request 48915).
    `batch_size=auto` leaves the batch to vLLM: `max_num_seqs` rows, filled up as answers end.
    """

    fills_batches = True

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        if str(kwargs.get("data_parallel_size", 1)) != "1":
            raise OptionError(
                f"data_parallel_size={kwargs['data_parallel_size']}: lm-eval would load the model "
                "within the measured time; start `vllm serve` with it, and pass base="
                "local-chat-completions"
            )
        kwargs.setdefault("disable_log_stats", False)
        if kwargs.get("speculative_config"):
            kwargs.setdefault("per_request_spec_decode_metrics", "detailed")
        super().__init__(*args, **kwargs)

    def check_request(self, gen_kwargs: dict[str, Any]) -> None:
        """Refuse to sample with drafts on a CPU: vLLM garbles such a batch (docs/upstream.md)."""
        config = self._vllm_config
        if not method_source(config) or config.device_config.device_type != "cpu":
            return
        settings, *_ = self.modify_gen_kwargs(gen_kwargs)
        if temperature := settings.get("temperature", _TEMPERATURE):
            raise OptionError(
                f"temperature={temperature}: on a CPU, vLLM's answers are garbage if it samples "
                "with drafts; pass --gen_kwargs do_sample=false, or sample without drafts"
            )

    @property
    def refills(self) -> bool:  # type: ignore[override]
        return bool(self.batch_size == "auto")

    def rows(self) -> int:
        if self.refills:
            return int(self._vllm_config.scheduler_config.max_num_seqs)
        return super().rows()

    def timed_answers(self, group: list[Instance], seconds: float) -> list[backends.TimedAnswer]:
        return [self._timed_answer(output, len(group)) for output in self._outputs]

    def loaded(self) -> dict[str, Any]:
        settings = self._vllm_config
        quantization = settings.model_config.quantization
        return {
            "device": settings.device_config.device_type,
            "dtype": str(settings.model_config.dtype).removeprefix("torch."),
            "quantization": quantization and {"quant_method": quantization},
            "environment": provenance.kernel_environment() | modes(settings),
        }

    def length(self, prompt: str) -> int:
        return len(self.tok_encode(prompt))

    def drafted(self, output: Any, num_forwards: int) -> Drafted | None:
        """What was drafted for a `RequestOutput`; None where vLLM reports nothing."""
        source, answer = method_source(self._vllm_config), output.outputs[0]
        if source is None:
            return Drafted()
        if (metrics := answer.spec_decode_metrics) is None:
            return None
        drafted, accepted = metrics.per_step_drafted, metrics.per_step_accepted
        return Drafted(attempts(drafted, accepted, len(answer.token_ids), num_forwards, source))

    @property
    def _vllm_config(self) -> Any:
        return self.model.llm_engine.vllm_config

    def _timed_answer(self, output: Any, num_rows: int) -> backends.TimedAnswer:
        answer, times, prompt_ids = output.outputs[0], output.metrics, output.prompt_token_ids
        forwards = self._forwards[output.request_id]
        drafted = self.drafted(output, len(forwards))
        made, spans = drafted or Drafted()
        counts = TurnCounts(
            num_reused_tokens=output.num_cached_tokens,
            num_forwards=len(forwards),
            num_prefill_tokens=forwards[0],
            drafts=None if drafted is None else backends.counts_by_source(made),
            seconds=self._seconds / num_rows,
            latency_seconds=self._seconds,
        )
        if times is not None:  # from when vLLM began with the request, not from when it got it
            counts = replace(counts, latency_seconds=times.last_token_ts - times.scheduled_ts)
        if times is not None and num_rows == 1:
            prefill = times.first_token_ts - times.scheduled_ts
            decode = self._seconds - prefill
            counts = replace(counts, prefill_seconds=prefill, decode_seconds=decode)
        reason = backends.finish_reason_from(answer.finish_reason, answer.stop_reason)
        timed = backends.with_tokens(counts, len(prompt_ids), answer.token_ids, reason)
        return backends.TimedAnswer(*timed[:2], tuple(prompt_ids), tuple(made), tuple(spans))

    def _model_generate(self, *args: Any, **kwargs: Any) -> list[Any]:
        with watched(self.model.llm_engine) as self._forwards:
            started = perf_counter()
            outputs: list[Any] = super()._model_generate(*args, **kwargs)
            self._seconds = perf_counter() - started
        self._outputs = outputs
        return outputs


def modes(config: Any) -> dict[str, str]:
    """What else decides the speed of a `VllmConfig`, and is often decided by vLLM itself."""
    compilation = config.compilation_config
    names = (getattr(each, "name", each) for each in (compilation.mode, compilation.cudagraph_mode))
    return {
        "vllm.runner": "V2" if getattr(config, "use_v2_model_runner", False) else "V1",
        "vllm.async_scheduling": str(bool(config.scheduler_config.async_scheduling)),
        "vllm.compilation": ", graphs ".join(map(str, names)),
    }


@contextmanager
def watched(engine: Any) -> Iterator[dict[str, list[int]]]:
    """The tokens that each forward gave a request of vLLM's `LLMEngine`, by its id."""
    num_tokens: defaultdict[str, list[int]] = defaultdict(list)
    processor = engine.output_processor
    process = processor.process_outputs

    def noted(outputs: Sequence[Any], *args: Any, **kwargs: Any) -> Any:
        # An aborted request may still get tokens that are not in its answer.
        states = [processor.request_states.get(output.request_id) for output in outputs]
        processed = process(outputs, *args, **kwargs)
        for output, state in zip(outputs, states, strict=True):
            # Without what follows a stop string.
            if state is not None and output.new_token_ids:
                num_tokens[state.external_req_id].append(len(output.new_token_ids))
        return processed

    with mock.patch.object(processor, "process_outputs", noted):
        yield num_tokens


def attempts(
    drafted: list[int], accepted: list[int], num_tokens: int, num_forwards: int, source: DraftSource
) -> tuple[Attempt, ...]:
    """The forwards of an answer that verified a draft, from vLLM's counts of each.

    vLLM counts what it accepted before it cuts the answer at its end, so the last count is cut
    here. Every forward gives what was accepted and one more token; the last may give less. If
    `num_forwards` is too low, because not all are known, too little is cut.

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
    """Where the drafts of vLLM's `VllmConfig` come from; None without drafts."""
    method = getattr(getattr(config, "speculative_config", None), "method", None)
    return method and ("context" if method in _COPYING else "model")
