"""The model that `lm_eval --model copyspec-timed` creates: a stock backend, its answers timed."""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from lm_eval.api.instance import Instance
from lm_eval.api.model import LM
from lm_eval.api.registry import model_registry
from lm_eval.models.api_models import TemplateAPI
from lm_eval.models.huggingface import HFLM
from lm_eval.models.utils import chunks
from lm_eval.utils import simple_parse_args_string

from copyspec_eval.errors import OptionError, unknown_option
from copyspec_eval.harness import evaluation
from copyspec_eval.harness.backends import Backend, TimedAnswer
from copyspec_eval.harness.backends.hf import HFBackend
from copyspec_eval.harness.backends.servers import APIBackend
from copyspec_eval.harness.backends.vllm import VLLMBackend
from copyspec_eval.harness.recorder import Answers, Asked, RunRecorder, run_spec
from copyspec_eval.manifest import RunSpec
from copyspec_eval.paths import lm_eval_models, model_path
from copyspec_eval.records import RecordedText

_WARM_UP_TOKENS = 4
# How much a backend that refills its batch is handed at once: the most a killed run loses.
_BATCHES_AT_ONCE, _ROWS_AT_ONCE = 32, 1024
_BUDGETS = ("max_gen_toks", "max_new_tokens", "max_tokens", "max_completion_tokens")


class TimedLM(Backend):
    """A stock model of lm-eval that answers as usual, with a `TurnRecord` on each answer.

    `create_from_arg_string` and `create_from_arg_obj` mix this class, and one of `backends` that
    knows what can be recorded, into the one that lm-eval has registered as `base`.

    Args:
        base: name of an lm-eval model.
        batch_size: rows that are handed over, and timed, together; for `vllm` also "auto".
        **kwargs: as the base takes them.
    """

    base_name = ""
    drafter: str | None = None
    drafting: Mapping[str, Any] | None = None  # how we make drafts, for the manifest

    @classmethod
    def create_from_arg_string(
        cls, arg_string: str, additional_config: dict[str, Any] | None = None
    ) -> "TimedLM":
        return cls.create_from_arg_obj(simple_parse_args_string(arg_string), additional_config)

    @classmethod
    def create_from_arg_obj(
        cls, arg_dict: dict[str, Any], additional_config: dict[str, Any] | None = None
    ) -> "TimedLM":
        more = {k: v for k, v in (additional_config or {}).items() if v is not None}
        arguments = {"batch_size": 1} | more | arg_dict
        name, named = arguments.pop("base", None), dict(arguments)
        if "pretrained" in arguments:
            arguments["pretrained"] = model_path(arguments["pretrained"])
        base = _base_class(name, arg_dict)
        bases = (cls, *_backend(name, base), base)
        timed: Any = type(f"Timed{base.__name__}", bases, {"base_name": name})
        timed.check_rows(arguments)
        evaluation.check_output_folder()
        model: TimedLM = super(TimedLM, timed).create_from_arg_obj(arguments)
        model._arguments = named
        return model

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._arguments, self._rows = kwargs, self.rows()
        self._recorder = RunRecorder(self.rank, self.world_size)
        self._warm = False

    def generate_until(self, requests: list[Instance], disable_tqdm: bool = False) -> list[str]:
        answers = Answers(self, requests, disable_tqdm)
        for job in answers.asked:
            self.check_request(job.settings)
        groups = self._groups(answers.asked)
        if groups and not self._warm:
            self._warm_up(groups[0][0])
            self._warm = True
        self.begin(self._spec(answers.asked))
        with answers.bar():
            for group in groups:
                texts, timed = self.ask([job.instance for job in group])
                for job, text, answer in zip(group, texts, timed, strict=True):
                    answers.add(job, self.record(job, text, answer))
        return answers.texts()

    def begin(self, spec: RunSpec) -> None:
        self._recorder.begin(spec)

    def record(self, job: Asked, text: str, answer: TimedAnswer) -> RecordedText:
        ours = {"backend": self.base_name, "drafter": self.drafter, "batch_size": self._rows}
        decode = partial(self.tokenizer.decode, skip_special_tokens=False) if answer.spans else None
        return self._recorder.add(job, text, answer, decode, **ours)

    def get_model_info(self) -> dict[str, Any]:
        info: dict[str, Any] = getattr(super(), "get_model_info", dict)()
        return info | {"copyspec": self._recorder.report()}

    def _warm_up(self, job: Asked) -> None:
        """Answer a request in a few tokens, and leave the random numbers as they are."""
        context, settings, *more = job.instance.args
        others = {name: value for name, value in settings.items() if name not in _BUDGETS}
        arguments = (context, others | {"max_gen_toks": _WARM_UP_TOKENS}, *more)
        metadata = (job.instance.task_name, job.instance.doc_id, 1)
        short = Instance("generate_until", job.instance.doc, arguments, 0, metadata)
        accelerator = torch.accelerator.current_accelerator() or torch.device("cuda")
        devices = range(torch.get_device_module(accelerator).device_count())
        with torch.random.fork_rng(devices, device_type=accelerator.type):
            self.ask([short])

    def _groups(self, jobs: Iterable[Asked]) -> list[list[Asked]]:
        """What is asked together: equal settings, in the order in which `hf` and `vllm` ask."""
        by_settings: defaultdict[str, list[Asked]] = defaultdict(list)
        for job in sorted(jobs, key=lambda job: (-self.length(job.prompt), job.prompt)):
            by_settings[str(job.settings)].append(job)
        size = self._rows
        if self.refills:
            size = max(size, min(size * _BATCHES_AT_ONCE, _ROWS_AT_ONCE))
        return [group for same in by_settings.values() for group in chunks(same, size)]

    def _spec(self, jobs: list[Asked]) -> RunSpec:
        given, how = self._arguments, {"backend": self.base_name, "batch_size": self._rows}
        model = given.get("pretrained") or given.get("model")
        spec = run_spec(self, model, given, jobs, self.processors, self.drafting, **how)
        return replace(spec, **self.loaded())


def _base_class(name: object, given: Iterable[str]) -> type[LM]:
    ours = lm_eval_models().names
    if name is None:
        raise OptionError(
            f"no base among the model_args ({', '.join(given)}); pass base=NAME with the lm-eval "
            "model to time, e.g. hf, vllm or local-chat-completions"
        )
    if name in ours:
        raise OptionError(
            f"base={name} keeps records of its own; pass the lm-eval model to time, e.g. base=hf"
        )
    if name not in model_registry:
        raise unknown_option("base", str(name), set(model_registry.keys()) - ours)
    try:
        return model_registry.get(str(name))  # type: ignore[no-any-return]
    except ImportError as error:
        raise OptionError(
            f"base={name} cannot be imported ({error}); install what lm-eval needs for it"
        ) from error


def _backend(name: object, base: type[LM]) -> tuple[type[Backend], ...]:
    """The class that knows more of `base` than its texts, if there is one."""
    as_hf = ("_create_model", "_model_generate", "generate_until")
    if all(getattr(base, method, None) is getattr(HFLM, method) for method in as_hf):
        return (HFBackend,)
    if issubclass(base, TemplateAPI):
        return (APIBackend,)
    return (VLLMBackend,) if name == "vllm" else ()
