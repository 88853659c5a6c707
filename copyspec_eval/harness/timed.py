"""The model that `lm_eval --model copyspec-timed` creates: a stock backend, its answers timed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from lm_eval.api.instance import Instance
from lm_eval.api.model import LM
from lm_eval.api.registry import model_registry, register_model
from lm_eval.models.api_models import TemplateAPI
from lm_eval.models.huggingface import HFLM
from lm_eval.utils import simple_parse_args_string

from copyspec_eval.decoding.span_characters import span_characters
from copyspec_eval.errors import OptionError, report_errors_in_one_line, unknown_option
from copyspec_eval.harness.answer_cache import RequestKey, put_into_cache, request_keys
from copyspec_eval.harness.backends.base import Backend, TimedAnswer
from copyspec_eval.harness.backends.hf import HFBackend
from copyspec_eval.harness.backends.servers import APIBackend
from copyspec_eval.harness.backends.vllm import VLLMBackend
from copyspec_eval.harness.progress import Progress
from copyspec_eval.harness.recorder import (
    RunRecorder,
    check_output_folder,
    prompt_text,
    request_fields,
)
from copyspec_eval.harness.run_spec import run_spec
from copyspec_eval.manifest import RunSpec
from copyspec_eval.paths import lm_eval_models, model_path
from copyspec_eval.records import BaselineTurn, RecordedText, SpanCharacters, TurnRecord
from copyspec_eval.types import Difference, first_difference

report_errors_in_one_line()

_WARM_UP_TOKENS = 4
_BUDGETS = ("max_gen_toks", "max_new_tokens", "max_tokens", "max_completion_tokens")


class _Job(NamedTuple):
    """One answer to give, its prompt rendered once."""

    key: RequestKey
    instance: Instance
    prompt: str
    settings: dict[str, Any]


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
        """As `create_from_arg_obj`, from `base=NAME,name=value,…`."""
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
        """The base's answers, longest prompt first; each is a `RecordedText`."""
        keys = request_keys(requests)
        jobs = [
            _job(key, instance) for key, instance in dict(zip(keys, requests, strict=True)).items()
        ]
        for job in jobs:
            self.check_request(job.settings)
        groups = self._groups(jobs)
        if groups and not self._warm:
            self._warm_up(groups[0][0])
            self._warm = True
        self._recorder.begin(self._spec(jobs))
        progress = Progress(len(jobs), disable=disable_tqdm or self.rank != 0)
        answers: dict[RequestKey, RecordedText] = {}
        for group in groups:
            texts, timed = self.ask([job.instance for job in group])
            for job, text, timed_answer in zip(group, texts, timed, strict=True):
                answers[job.key] = answer = self._answer(job, text, timed_answer)
                put_into_cache(self.cache_hook, job.instance, answer)
                self._recorder.add(answer.record)
                progress.update(answer.record)
        progress.close()
        return [answers[key] for key in keys]

    def get_model_info(self) -> dict[str, Any]:
        """The base's facts, and the run's figures per task, turn and category."""
        info: dict[str, Any] = getattr(super(), "get_model_info", dict)()
        return info | {"copyspec": self._recorder.report()}

    def _warm_up(self, job: _Job) -> None:
        """Answer the beginning of a request, so that nothing is cold afterwards."""
        # What is sampled afterwards is what the base would have sampled.
        accelerator = torch.accelerator.current_accelerator() or torch.device("cuda")
        devices = range(torch.get_device_module(accelerator).device_count())
        with torch.random.fork_rng(devices, device_type=accelerator.type):
            self.ask([_beginning(job)])

    def _groups(self, jobs: Iterable[_Job]) -> list[list[_Job]]:
        """What is asked together: the same settings, prompts of similar length.

        `hf` and `vllm` order what they are asked in the same way, so that the rows of their batch
        are in the order of the group.
        """
        of_settings: dict[str, list[_Job]] = {}
        for job in sorted(jobs, key=lambda job: (-self.length(job.prompt), job.prompt)):
            of_settings.setdefault(str(job.settings), []).append(job)
        size = self._rows.at_once
        return [
            same[start : start + size]
            for same in of_settings.values()
            for start in range(0, len(same), size)
        ]

    def _answer(self, job: _Job, text: str, timed: TimedAnswer) -> RecordedText:
        prompt, answer = job.prompt, text
        characters: tuple[SpanCharacters, ...] = ()
        if timed.spans:
            prompt, answer, characters = span_characters(
                self._text, timed.prompt_ids, timed.token_ids or (), timed.spans
            )
        record = TurnRecord(
            run_id=self._recorder.run_id,
            **request_fields(job.instance, job.key.repeat, self.rank, job.prompt),
            backend=self.base_name,
            drafter=self.drafter,
            batch_size=self._rows.side_by_side,
            prompt=prompt,
            counts=timed.counts,
            attempts=timed.attempts,
            token_ids=timed.token_ids,
            text=text,
            answer=answer,
            spans=timed.spans,
            span_characters=characters,
            baseline=_baseline(timed),
        )
        return RecordedText(text, record)

    def _text(self, token_ids: Sequence[int]) -> str:
        """Of tokens, special ones included."""
        text: str = self.tokenizer.decode(list(token_ids), skip_special_tokens=False)
        return text

    def _spec(self, jobs: list[_Job]) -> RunSpec:
        """The settings that decide this run's figures."""
        of_tasks = {job.instance.task_name or "": job.settings for job in jobs}
        spec = run_spec(
            self,
            backend=self.base_name,
            model=self._arguments.get("pretrained") or self._arguments.get("model"),
            arguments=self._arguments,
            batch_size=self._rows.side_by_side,
            requests={
                task: {"logits_processors": self.processors(settings)}
                for task, settings in of_tasks.items()
            },
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


def _job(key: RequestKey, instance: Instance) -> _Job:
    context, settings, *_ = instance.args
    return _Job(key, instance, prompt_text(context), settings)


def _beginning(job: _Job) -> Instance:
    """A request for the first few tokens of an answer."""
    context, settings, *more = job.instance.args
    kept = {name: value for name, value in settings.items() if name not in _BUDGETS}
    arguments = (context, kept | {"max_gen_toks": _WARM_UP_TOKENS}, *more)
    metadata = (job.instance.task_name, job.instance.doc_id, 1)
    return Instance("generate_until", job.instance.doc, arguments, 0, metadata)


def _baseline(timed: TimedAnswer) -> BaselineTurn | None:
    """The baseline's side of an answer; why the two differ is left to `compare --rescore`."""
    if timed.baseline is None:
        return None
    ids, plain_ids = timed.token_ids or (), timed.baseline.token_ids or ()
    place, difference = first_difference(ids, plain_ids), None
    if place is not None:
        a, b = (each[place] if place < len(each) else None for each in (ids, plain_ids))
        difference = Difference(place, a, b, margin=None, noise=0.0)
    return BaselineTurn(timed.baseline.counts, plain_ids, difference)
