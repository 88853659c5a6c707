"""The model that `lm_eval --model copyspec` creates: lm-eval's `hf`, with generation replaced."""

from __future__ import annotations

import logging
from dataclasses import asdict
from functools import partial
from typing import Any

import torch
from lm_eval.api.instance import Instance
from lm_eval.api.registry import register_model
from lm_eval.models.huggingface import HFLM
from lm_eval.models.utils import postprocess_generated_text

from copyspec_eval.decoding import kernels, serving
from copyspec_eval.decoding.compiling import compile_layers
from copyspec_eval.decoding.earlier_runs import EarlierAnswers, store_option
from copyspec_eval.decoding.engine import Engine
from copyspec_eval.decoding.own_probe import choose_cache
from copyspec_eval.decoding.paired import Baseline, PairedEngine
from copyspec_eval.decoding.prefix_cache import PrefixCache
from copyspec_eval.decoding.step_costs import step_costs
from copyspec_eval.drafters.registry import (
    default_drafter,
    drafter_factory,
    drafter_kind,
    longest_draft,
)
from copyspec_eval.errors import ModelError, OptionError, report_errors_in_one_line
from copyspec_eval.harness import draft_models, earlier, options
from copyspec_eval.harness.answer_cache import RequestKey, put_into_cache, request_keys
from copyspec_eval.harness.exact_steps import exact_steps
from copyspec_eval.harness.progress import Progress
from copyspec_eval.harness.ranks import split_documents_over_ranks
from copyspec_eval.harness.recorder import RunRecorder, check_output_folder, request_fields
from copyspec_eval.harness.requests import Prepared, RequestBuilder
from copyspec_eval.harness.run_spec import run_spec
from copyspec_eval.harness.span_characters import span_characters
from copyspec_eval.manifest import RunSpec
from copyspec_eval.paths import TINY, model_path
from copyspec_eval.records import BaselineTurn, RecordedText, TurnRecord
from copyspec_eval.types import (
    PAPER_DELTA,
    PAPER_GAMMA,
    CacheKind,
    DraftOptions,
    ExactSteps,
    Generation,
)

report_errors_in_one_line()

logger = logging.getLogger("lm_eval.copyspec")

_AUTO_ROWS = 128
"""Tokens per step up to which a step is bound by reading the weights (B x width)."""
_USUAL_DRAFT = 15
"""Tokens of a draft that is seldom longer, where it may be."""
_OWN_CACHE = (
    "it is decoded with its own attention and cache, one request at a time, and nothing of earlier "
    "prompts is reused (prefix_cache)"
)


@register_model("copyspec")
class CopySpecLM(HFLM):
    """`hf` with CopySpec decoding.

    Loading, chat templates, log-likelihoods and data parallelism are lm-eval's own.

    Args:
        pretrained: as for `hf`: a Hub name, a folder, or a loaded model; or `copyspec-tiny`, the
            embedded model, which is also taken if nothing is given.
        drafter: name of a drafter; `none` decodes token by token. By default `suffix`, or the
            paper's `copyspec` where its `gamma` is given.
        gamma: the paper's γ, how many trailing tokens must have occurred before.
        num_draft_tokens: the most tokens of a draft; by default the drafter's own number.
        store: copy from earlier answers of the run, too; or the folder of an earlier run, several
            as a list or with `:` between them, whose answers are copied from as well.
        tree: draft several continuations at once; needs `exact=false`.
        recycle: fill such trees with the runners-up of the model's own logits.
        draft_model: a smaller model of the same tokenizer, which drafts where the drafter does not.
        delta: the paper's δ, how many tokens the draft model proposes at a time.
        exact: steps are of widths that have the same bits on this model and machine, so that
            outputs are those of plain one-token decoding, bit for bit, whatever was drafted.
        paired: answer every request by plain one-token decoding too, and record both; the
            conversation continues from the baseline's answer.
        prefix_cache: the most host memory, in bytes or such as "2GB", for keys and values of
            earlier prompts and answers, so that what begins alike is read once; 0 for none.
        compile: run the model's layers as compiled graphs, made before the first request.
        **kwargs: everything else that `hf` takes.

    Raises:
        OptionError, ModelError: before any weight is loaded, for an argument that does not exist
            or a model that cannot be served.
    """

    def __init__(
        self,
        pretrained: Any = None,
        drafter: str | None = "",
        gamma: int | None = None,
        num_draft_tokens: int | None = None,
        store: bool | str | list[str] = False,
        tree: bool = False,
        recycle: bool = False,
        draft_model: str | None = None,
        delta: int = PAPER_DELTA,
        exact: bool = True,
        paired: bool = False,
        prefix_cache: int | str = "2GB",
        compile: bool = False,
        **kwargs: Any,
    ) -> None:
        if pretrained is None:
            logger.warning("no model given: this is the embedded %s; pass pretrained=NAME", TINY)
            pretrained = TINY
        batch_size = kwargs.get("batch_size", 1)
        options.check_batch_size(batch_size)
        options.check_values(kwargs)
        check_output_folder()
        self._arguments = dict(kwargs)
        # lm-eval reads the word "none" as None.
        self._draft_options = DraftOptions(
            drafter=default_drafter(gamma) if drafter == "" else drafter or "none",
            gamma=PAPER_GAMMA if gamma is None else gamma,
            num_draft_tokens=num_draft_tokens,
            store=store_option(store),
            tree=tree,
            recycle=recycle,
            draft_model=draft_model,
            delta=delta,
        )
        self._exact = options.check_bool("exact", exact)
        if tree and exact:
            raise OptionError("tree=true gives other bits than a chain; pass exact=false with it")
        self._paired = options.check_bool("paired", paired)
        self._compile = options.check_bool("compile", compile)
        if compile:
            options.check_compile(kwargs)
        self._prefix_bytes = options.bytes_of("prefix_cache", prefix_cache)
        self._make_drafter = drafter_factory(self._draft_options)
        paths = self._draft_options.store_paths
        earlier_answers = earlier.answers_of(paths)
        self._longest = longest_draft(self._draft_options)
        self._exact_steps: dict[int, ExactSteps] = {}
        self._step_costs: dict[int, dict[int, float]] = {}
        named = isinstance(pretrained, str)
        source: Any = model_path(pretrained) if named else pretrained
        config = options.read_config(source, kwargs) if named else source.config
        options.check_names(kwargs, config)
        serving.check_config(config)
        self._check_own_cache = partial(
            options.check_own_cache, exact=exact, tree=tree, compile=compile, batch_size=batch_size
        )
        self._check_own_cache(serving.needs_own_cache(config))
        if draft_model is not None:
            tokenizer = source if named else kwargs.get("tokenizer") or config._name_or_path
            draft_models.check(draft_model, tokenizer, kwargs)
        # lm-eval's own default is "cuda", be there such a device or not.
        device = kwargs.pop("device", None) or ("cuda" if torch.cuda.is_available() else "cpu")
        with options.loading(
            "pretrained", pretrained, "check its files, and what you pass with it"
        ):
            super().__init__(source, device=device, **kwargs)
        self.pretrained = pretrained  # the name, for people
        split_documents_over_ranks(self)
        if exact:
            serving.check_exact(self.model)
        if compile:
            compile_layers(self.model)
        with self._autocast():
            self.cache_kind = self._choose_cache()
            if self._rows:
                self._steps(self._rows)
        # One for each arm, or one would read nothing where the other had read it.
        each = self._prefix_bytes // (2 if paired else 1)
        self._prefix_caches = [PrefixCache(each) if each else None for _ in range(2)]
        self._draft_model = draft_models.load(
            draft_model, delta, self.model.dtype, self.device, kwargs
        )
        self._earlier = EarlierAnswers()
        if earlier_answers:
            self._earlier = earlier.tokenised(earlier_answers, self, paths)
            self._make_drafter = drafter_factory(self._draft_options, self._earlier.in_order)
        self._builder = RequestBuilder(self, self._earlier)
        self._recorder = RunRecorder(self.rank, self.world_size)
        self._warm = False

    def generate_until(self, requests: list[Instance], disable_tqdm: bool = False) -> list[str]:
        """Answer `requests`, longest prompt first; each answer is a `RecordedText`."""
        keys = request_keys(requests)
        distinct = dict(zip(keys, requests, strict=True))
        jobs = [self._builder.build(request, key.repeat) for key, request in distinct.items()]
        # Of several ranks, one may well have been given documents that were not asked before.
        if jobs and not self._warm and self.world_size == 1:
            earlier.check_asked(self._draft_options.store_paths, jobs)
        jobs.sort(key=lambda job: -len(job.sequence.prompt_ids))
        with self._autocast():
            engine = self._engine(jobs)
        engine.check([job.sequence for job in jobs])
        batch_size = self._batch_size(jobs)
        self._recorder.begin(
            self._spec(jobs), self._step_costs.get(batch_size), self._exact_steps.get(batch_size)
        )
        progress = Progress(len(jobs), disable=disable_tqdm or self.rank != 0)
        answers: dict[RequestKey, RecordedText] = {}

        def finish(index: int, generation: Generation, baseline: Baseline | None = None) -> None:
            answer = self._answer(jobs[index], generation, baseline)
            answers[RequestKey(id(jobs[index].instance), jobs[index].repeat)] = answer
            put_into_cache(self.cache_hook, jobs[index].instance, answer)
            self._recorder.add(answer.record)
            progress.update(answer.record)

        with self._autocast():
            if jobs and not self._warm:
                engine.warm_up(jobs[0].sequence)
                self._warm = True
            engine.generate([job.sequence for job in jobs], finish)
        progress.close()
        return [answers[key] for key in keys]

    def chat_template(self, chat_template: bool | str = False) -> str | None:
        """The tokenizer's template.

        Raises:
            ModelError: one is asked for and the tokenizer has none.
        """
        if chat_template and not getattr(self.tokenizer, "chat_template", None):
            raise ModelError(
                f"the tokenizer of {self.pretrained!r} has no chat template; leave "
                "--apply_chat_template out, or pass tokenizer=NAME of one that has"
            )
        template: str | None = super().chat_template(chat_template)
        return template

    def get_model_info(self) -> dict[str, Any]:
        """lm-eval's facts about the model, and the run's figures per task, turn and category.

        lm-eval asks once, on rank 0, when all answers are in; the table is printed then.
        """
        info: dict[str, Any] = super().get_model_info()
        return info | {"copyspec": self._recorder.report()}

    def _choose_cache(self) -> CacheKind:
        """Whose cache passes its trial; the prefix cache is off with the model's own."""
        choice = choose_cache(self.model, exact=self._exact, batch_size=self._rows or 2)
        self._check_own_cache(choice.reason)
        if choice.reason:
            logger.warning("%s: %s", choice.reason, _OWN_CACHE)
            self._prefix_bytes = 0
        return choice.kind

    @property
    def _rows(self) -> int | None:
        """`--batch_size`, if it is a number."""
        return None if self.batch_size == "auto" else int(self.batch_size)

    @property
    def _kernels(self) -> str:
        """Whose linear layers and attention decode."""
        is_ours = self.cache_kind == "copyspec" and kernels.serve(self.model)
        return "copyspec" if is_ours else "torch"

    def _autocast(self) -> torch.autocast:
        return torch.autocast(
            device_type=self.device.type,
            dtype=self.mixed_precision_dtype,
            enabled=self.mixed_precision_dtype is not None,
        )

    def _engine(self, jobs: list[Prepared]) -> Engine | PairedEngine:
        batch_size = self._batch_size(jobs)
        steps = self._steps(batch_size)
        longest = min(self._longest, steps.num_draft_tokens) if steps else self._longest
        engine = Engine(
            self.model,
            self._make_drafter,
            num_draft_tokens=longest,
            exact=steps,
            batch_size=batch_size,
            step_costs=self._costs(batch_size, longest),
            draft_model=self._draft_model,
            prefix_cache=self._prefix_caches[0],
            cache=self.cache_kind,
        )
        if not self._paired:
            return engine
        return PairedEngine(self.model, engine, self._prefix_caches[1])

    def _steps(self, batch_size: int) -> ExactSteps | None:
        """The exact steps of a batch size; None without exact mode."""
        if not self._exact:
            return None
        if batch_size not in self._exact_steps:
            options = self._draft_options
            with self._autocast():
                self._exact_steps[batch_size] = exact_steps(
                    self.model,
                    self.tokenizer,
                    longest=self._longest,
                    needed=max(
                        options.num_draft_tokens or 0, options.delta if options.draft_model else 0
                    ),
                    batch_size=batch_size,
                )
        return self._exact_steps[batch_size]

    def _costs(self, batch_size: int, num_draft_tokens: int) -> dict[int, float] | None:
        """What steps cost, measured once per batch size; None where no drafter asks for it."""
        steps = self._steps(batch_size)
        kind = drafter_kind(self._draft_options.drafter)
        if kind.num_draft_tokens is not None or (steps and steps.kind == "fixed width"):
            return None
        if batch_size not in self._step_costs:
            self._step_costs[batch_size] = step_costs(
                self.model, batch_size, num_draft_tokens, steps, self.cache_kind
            )
        return self._step_costs[batch_size]

    def _batch_size(self, jobs: list[Prepared]) -> int:
        """`--batch_size`; `auto` fills a step up to where rows stop being nearly free."""
        if self._rows:
            return self._rows
        if self.cache_kind != "copyspec":
            return 1
        width = 1 + min(self._longest, _USUAL_DRAFT)
        rows = max(1, min(_AUTO_ROWS // width, len(jobs)))
        return 1 << (rows.bit_length() - 1)

    def _answer(
        self, job: Prepared, generation: Generation, baseline: Baseline | None
    ) -> RecordedText:
        text = self._text(job, baseline.generation if baseline else generation)
        prompt, drafted_answer, characters = span_characters(
            lambda ids: self.tok_decode(ids, skip_special_tokens=False),
            job.sequence.prompt_ids,
            generation.token_ids,
            generation.spans,
        )
        record = TurnRecord(
            run_id=self._recorder.run_id,
            **request_fields(job.instance, job.repeat, self.rank, job.context),
            backend="copyspec",
            drafter=self._draft_options.label,
            batch_size=generation.batch_size,
            prompt=prompt,
            counts=generation.counts,
            attempts=generation.attempts,
            token_ids=generation.token_ids,
            text=text,
            answer=drafted_answer,
            spans=generation.spans,
            span_characters=characters,
            baseline=_baseline_turn(baseline) if baseline else None,
        )
        return RecordedText(text, record)

    def _text(self, job: Prepared, generation: Generation) -> str:
        """The answer's text as `HFLM.generate_until` cuts it: thinking in front, stops behind."""
        token_ids, marker = list(generation.token_ids), self.think_end_token
        if isinstance(marker, int) and marker in token_ids:
            token_ids = token_ids[len(token_ids) - token_ids[::-1].index(marker) :]
        text: str = self.tok_decode(token_ids)
        if isinstance(marker, int):
            text = text.lstrip()
        cut: str = postprocess_generated_text(
            generation=text,
            stop=job.until,
            think_end_token=marker if isinstance(marker, str) else None,
        )
        return cut

    def _spec(self, jobs: list[Prepared]) -> RunSpec:
        """The settings that decide this run's figures."""
        processors: dict[str, set[str]] = {}
        for job in jobs:
            processors.setdefault(job.instance.task_name or "", set()).update(job.processors)
        steps = self._steps(self._batch_size(jobs))
        return run_spec(
            self,
            backend="copyspec",
            model=self.pretrained,
            arguments=self._arguments,
            batch_size=self.batch_size,
            requests={task: {"logits_processors": sorted(of)} for task, of in processors.items()},
            drafting=asdict(self._draft_options)
            | {"num_draft_tokens": self._longest, "steps": steps.kind if steps else "any"}
            | {"exact": self._exact, "paired": self._paired}
            | {"prefix_cache": self._prefix_bytes, "compile": self._compile}
            | {"cache": self.cache_kind, "kernels": self._kernels}
            | earlier.settings(self._draft_options.store_paths, self._earlier),
        )


def _baseline_turn(baseline: Baseline) -> BaselineTurn:
    generation = baseline.generation
    return BaselineTurn(generation.counts, generation.token_ids, baseline.difference)
