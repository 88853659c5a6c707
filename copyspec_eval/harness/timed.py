"""The model that `lm_eval --model copyspec-timed` creates: a stock backend, its answers timed."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from lm_eval.api.instance import Instance
from lm_eval.api.model import LM
from lm_eval.api.registry import model_registry, register_model
from lm_eval.models.api_models import TemplateAPI
from lm_eval.models.huggingface import HFLM
from lm_eval.utils import simple_parse_args_string

from copyspec_eval.errors import OptionError, report_errors_in_one_line, unknown_option
from copyspec_eval.harness.backends.base import Backend, TimedAnswer
from copyspec_eval.harness.backends.hf import HFBackend
from copyspec_eval.harness.backends.servers import APIBackend
from copyspec_eval.harness.backends.vllm import VLLMBackend
from copyspec_eval.harness.recorder import Answers, Asked, RunRecorder, check_output_folder
from copyspec_eval.harness.run_spec import run_spec
from copyspec_eval.manifest import RunSpec
from copyspec_eval.paths import lm_eval_models, model_path
from copyspec_eval.records import RecordedText

report_errors_in_one_line()

_WARM_UP_TOKENS = 4
_BUDGETS = ("max_gen_toks", "max_new_tokens", "max_tokens", "max_completion_tokens")


@register_model("copyspec-timed")
class TimedLM(Backend):
    """A stock model of lm-eval that answers as ever, with a `TurnRecord` on each answer.

    `create_from_arg_string` and `create_from_arg_obj` put this class in front of the one that
    lm-eval has registered as `base`; all but the timing of answers is left to that one. What is
    timed, and what else is recorded of an answer, is up to `backends`.

    Args:
        base: name of an lm-eval model.
        batch_size: rows that are handed over, and timed, together; `vllm` takes "auto", too.
        **kwargs: as the base takes them.

    Raises:
        OptionError: before anything is loaded, for a base that is missing or unknown, or a setting
            under which the time of an answer is not known.
    """

    base_name = ""
    drafter: str | None = None
    drafting: Mapping[str, Any] | None = None
    """How drafts are made, for the manifest; None where it is not ours to say."""
    _arguments: dict[str, Any]

    @classmethod
    def create_from_arg_string(
        cls, arg_string: str, additional_config: dict[str, Any] | None = None
    ) -> TimedLM:
        return cls.create_from_arg_obj(simple_parse_args_string(arg_string), additional_config)

    @classmethod
    def create_from_arg_obj(
        cls, arg_dict: dict[str, Any], additional_config: dict[str, Any] | None = None
    ) -> TimedLM:
        """The model named `base`, timed; lm-eval's `additional_config` comes after `arg_dict`."""
        given = {
            name: value for name, value in (additional_config or {}).items() if value is not None
        }
        arguments = {"batch_size": 1} | given | arg_dict
        name = arguments.pop("base", None)
        named = dict(arguments)
        if "pretrained" in arguments:
            arguments["pretrained"] = model_path(arguments["pretrained"])
        base = _base_class(name, arg_dict)
        bases = (cls, *_insight(name, base), base)
        timed: Any = type(f"Timed{base.__name__}", bases, {"base_name": name})
        timed.check_rows(arguments)
        check_output_folder()
        model: TimedLM = super(TimedLM, timed).create_from_arg_obj(arguments)
        model._arguments = named
        return model

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._arguments = kwargs
        self._rows = self.rows()
        self._recorder = RunRecorder(self.rank, self.world_size)
        self._warm = False

    def generate_until(self, requests: list[Instance], disable_tqdm: bool = False) -> list[str]:
        answers = Answers(self, requests, disable_tqdm)
        jobs = []
        for (_, repeat), instance in answers.asked.items():
            context, settings, *_ = instance.args
            if not isinstance(context, str):  # a chat API's messages
                context = json.dumps(context, ensure_ascii=False)
            jobs.append(Asked(instance, repeat, context, settings))
            self.check_request(settings)
        groups = self._groups(jobs)
        if groups and not self._warm:
            self._warm_up(groups[0][0])
            self._warm = True
        self._recorder.begin(self._spec(jobs))
        with answers:
            for group in groups:
                texts, timed = self.ask([job.instance for job in group])
                for job, text, answer in zip(group, texts, timed, strict=True):
                    answers.add(job, self._record(job, text, answer))
        return answers.texts()

    def get_model_info(self) -> dict[str, Any]:
        info: dict[str, Any] = getattr(super(), "get_model_info", dict)()
        return info | {"copyspec": self._recorder.report()}

    def _warm_up(self, job: Asked) -> None:
        """Answer the beginning of a request, so that nothing is cold afterwards."""
        # What is sampled afterwards is what the base would have sampled.
        accelerator = torch.accelerator.current_accelerator() or torch.device("cuda")
        devices = range(torch.get_device_module(accelerator).device_count())
        with torch.random.fork_rng(devices, device_type=accelerator.type):
            self.ask([_beginning(job)])

    def _groups(self, jobs: Iterable[Asked]) -> list[list[Asked]]:
        """What is asked together: the same settings, in the order in which `hf` and `vllm` ask."""
        of_settings: dict[str, list[Asked]] = {}
        for job in sorted(jobs, key=lambda job: (-self.length(job.prompt), job.prompt)):
            of_settings.setdefault(str(job.settings), []).append(job)
        size = self._rows.at_once
        return [
            same[start : start + size]
            for same in of_settings.values()
            for start in range(0, len(same), size)
        ]

    def _record(self, job: Asked, text: str, answer: TimedAnswer) -> RecordedText:
        return self._recorder.add(
            job,
            text,
            answer,
            self._text if answer.spans else None,
            backend=self.base_name,
            drafter=self.drafter,
            batch_size=self._rows.side_by_side,
        )

    def _text(self, token_ids: Sequence[int]) -> str:
        return str(self.tokenizer.decode(list(token_ids), skip_special_tokens=False))

    def _spec(self, jobs: list[Asked]) -> RunSpec:
        settings = {job.instance.task_name or "": job.settings for job in jobs}
        spec = run_spec(
            self,
            backend=self.base_name,
            model=self._arguments.get("pretrained") or self._arguments.get("model"),
            arguments=self._arguments,
            batch_size=self._rows.side_by_side,
            processors={task: self.processors(each) for task, each in settings.items()},
            drafting=self.drafting,
        )
        return replace(spec, **self.loaded())


def _base_class(name: object, given: Iterable[str]) -> type[LM]:
    if name is None:
        raise OptionError(
            f"no base among the model_args ({', '.join(given)}); pass base=NAME with the lm-eval "
            "model to time, such as hf, vllm or local-chat-completions"
        )
    if name in lm_eval_models().names:
        raise OptionError(
            f"base={name} keeps records of its own; pass the lm-eval model to time, such as base=hf"
        )
    if name not in model_registry:
        raise unknown_option("base", str(name), set(model_registry.keys()) - lm_eval_models().names)
    try:
        base: type[LM] = model_registry.get(str(name))
    except ImportError as error:
        raise OptionError(
            f"base={name} cannot be imported ({error}); install what lm-eval needs for it"
        ) from error
    return base


def _insight(name: object, base: type[LM]) -> tuple[type[Backend], ...]:
    """The class that knows more of `base` than its texts, if there is one."""
    as_hf = ("_create_model", "_model_generate", "generate_until")
    if all(getattr(base, method, None) is getattr(HFLM, method) for method in as_hf):
        return (HFBackend,)
    if issubclass(base, TemplateAPI):
        return (APIBackend,)
    return (VLLMBackend,) if name == "vllm" else ()


def _beginning(job: Asked) -> Instance:
    context, settings, *more = job.instance.args
    kept = {name: value for name, value in settings.items() if name not in _BUDGETS}
    arguments = (context, kept | {"max_gen_toks": _WARM_UP_TOKENS}, *more)
    metadata = (job.instance.task_name, job.instance.doc_id, 1)
    return Instance("generate_until", job.instance.doc, arguments, 0, metadata)
