"""vLLM as lm-eval uses it: it says every prompt twice, with the drafts of our proposer."""

import os
import random
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import metadata
from importlib.machinery import ModuleSpec
from pkgutil import resolve_name
from types import ModuleType, SimpleNamespace
from typing import Any, ClassVar

import pytest
import torch
from lm_eval.api.registry import _materialise_placeholder, model_registry
from rows_engine import MOST_LENGTH, Asked, config, serve
from transformers import AutoTokenizer

NUM_ROWS = 3


class Processor:
    request_states: dict[str, Any]

    def process_outputs(self, outputs: Sequence[Any], **_: Any) -> None:
        """Hands out the tokens of every step; the backend looks at them here."""


class LLM:
    """What lm-eval uses of vLLM's class of that name, and `collective_rpc`."""

    made: ClassVar[list["LLM"]] = []

    def __init__(self, **options: Any) -> None:
        LLM.made.append(self)
        self.options = options
        self.wrong_after: int | None = None
        speculative = options.get("speculative_config")
        settings = SimpleNamespace(
            speculative_config=speculative and SimpleNamespace(**speculative),
            # As vLLM chooses: drafts from outside need the older runner, and go without the other.
            scheduler_config=SimpleNamespace(
                max_num_seqs=NUM_ROWS,
                async_scheduling=options.get("async_scheduling", speculative is None),
            ),
            use_v2_model_runner=bool(
                int(os.environ.get("VLLM_USE_V2_MODEL_RUNNER", speculative is None))
            ),
            compilation_config=SimpleNamespace(mode=None, cudagraph_mode=None),
            model_config=SimpleNamespace(dtype=torch.bfloat16, quantization=None),
            device_config=SimpleNamespace(device_type="cpu"),
        )
        self.llm_engine: Any = SimpleNamespace(output_processor=Processor(), vllm_config=settings)
        self._tokenizer: Any = AutoTokenizer.from_pretrained(options["model"])
        self._workers: list[Any] = []
        self._limits: dict[str, int] = {}
        if speculative and "model" in speculative:
            longest, max_length = speculative["num_speculative_tokens"], options["max_model_len"]
            proposer = resolve_name(speculative["model"])(config(longest, max_length))
            self._limits = {"longest": longest, "max_length": max_length}
            # Of two pipeline stages, only the last has a proposer.
            for runner in (SimpleNamespace(), SimpleNamespace(drafter=proposer)):
                self._workers.append(resolve_name(options["worker_extension_cls"])())
                self._workers[-1].model_runner = runner

    def collective_rpc(self, method: str, args: tuple[Any, ...] = ()) -> list[Any]:
        """As lists, which is how they come from other processes."""
        return [_plain(getattr(worker, method)(*args)) for worker in self._workers]

    def generate(self, prompts: Any, sampling_params: Any, **_: Any) -> list[Any]:
        processor = self.llm_engine.output_processor
        proposer = self._workers[-1].model_runner.drafter if self._workers else None
        pairs = zip(prompts, sampling_params, strict=True)
        asked = [self._asked(list(prompt), **each) for prompt, each in pairs]
        if self.wrong_after is not None:
            for request in asked:
                request.answer_ids[self.wrong_after :] = [0]
        names = {id(request): str(number) for number, request in enumerate(asked)}
        states = {name: SimpleNamespace(external_req_id=name) for name in names.values()}
        processor.request_states = states

        def on_step(request: Asked, sampled: list[int]) -> None:
            beyond = len(request.output_ids) - (request.stop or MOST_LENGTH)
            given = sampled[: len(sampled) - max(0, beyond)]
            output = SimpleNamespace(request_id=names[id(request)], new_token_ids=given)
            processor.process_outputs([output])

        serve(proposer, asked, NUM_ROWS, random.Random(0), on_step, **self._limits)
        return [self._output(request, names[id(request)], bool(proposer)) for request in asked]

    def _asked(self, prompt_ids: list[int], max_tokens: int, stop: list[str], **_: Any) -> Asked:
        answer_ids = (2 * prompt_ids)[:max_tokens]
        texts = [self._tokenizer.decode(answer_ids[: n + 1]) for n in range(max_tokens)]
        stops = [n + 1 for n, text in enumerate(texts) if any(each in text for each in stop)]
        return Asked(prompt_ids, answer_ids, min(stops, default=None))

    def _output(self, request: Asked, name: str, is_drafting: bool) -> Any:
        drafted, accepted = ([each[at] for each in request.verified] for at in (0, 1))
        metrics = SimpleNamespace(per_step_drafted=drafted, per_step_accepted=accepted)
        token_ids, is_stopped = request.output_ids[: request.stop], request.is_stopped
        answer = SimpleNamespace(text=self._tokenizer.decode(token_ids), token_ids=token_ids)
        answer.finish_reason = "stop" if is_stopped else "length"
        answer.stop_reason = "a string" if is_stopped else None
        # vLLM's engine counts, and does not know yet that a stop string ends the answer.
        answer.spec_decode_metrics = metrics if is_drafting and not is_stopped else None
        # By a clock of its own: it has waited for 5 s, and then took 1 s and 2 s.
        times = SimpleNamespace(scheduled_ts=5.0, first_token_ts=6.0, last_token_ts=8.0)
        output = SimpleNamespace(request_id=name, prompt_token_ids=request.prompt_ids)
        output.num_cached_tokens, output.metrics, output.outputs = 0, times, [answer]
        return output


@dataclass
class EngineArgs:
    """Arguments that vLLM takes and lm-eval does not name."""

    speculative_config: Any = None
    per_request_spec_decode_metrics: str = "none"
    worker_extension_cls: str = ""
    gpu_memory_utilization: float = 0.9


@contextmanager
def pretended(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """lm-eval's own `vllm` model, in front of `LLM` in place of vLLM."""
    named = {"LLM": LLM, "SamplingParams": dict, "EngineArgs": EngineArgs}
    contents: dict[str, dict[str, Any]] = {
        "vllm": {**named, "TokensPrompt": lambda prompt_token_ids: prompt_token_ids},
        "vllm.lora": {},
        "vllm.lora.request": {"LoRARequest": None},
        "vllm.tokenizers": {"get_tokenizer": lambda name, **_: AutoTokenizer.from_pretrained(name)},
    }
    for name, members in contents.items():
        module = ModuleType(name)
        module.__spec__ = ModuleSpec(name, None)
        vars(module).update(members)
        monkeypatch.setitem(sys.modules, name, module)
    others = metadata.version
    monkeypatch.setattr(metadata, "version", lambda n: "0.8.0" if n == "vllm" else others(n))
    placeholder = "lm_eval.models.vllm_causallms:VLLM"
    monkeypatch.setitem(model_registry._objs, "vllm", placeholder)
    LLM.made.clear()
    yield
    sys.modules.pop(placeholder.partition(":")[0], None)
    _materialise_placeholder.cache_clear()


def _plain(value: Any) -> Any:
    return [_plain(item) for item in value] if isinstance(value, list | tuple) else value
