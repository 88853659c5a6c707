"""The model that `lm_eval --model copyspec` creates: lm-eval's `hf`, with generation replaced."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import asdict
from functools import partial
from typing import Any

import torch
from lm_eval.api.instance import Instance
from lm_eval.api.registry import register_model
from lm_eval.models.huggingface import HFLM
from lm_eval.models.utils import postprocess_generated_text
from transformers import PreTrainedModel

from copyspec_eval.decoding import kernels, model_support
from copyspec_eval.decoding.earlier_runs import store_option
from copyspec_eval.decoding.engines import Drafting, Engines
from copyspec_eval.decoding.model_copy import model_copy, one_at_a_time
from copyspec_eval.decoding.paired import Baseline, PairedAnswer, PairedEngine
from copyspec_eval.decoding.prefix_cache import PrefixCache
from copyspec_eval.decoding.sizes import bytes_of
from copyspec_eval.decoding.span_characters import span_characters
from copyspec_eval.decoding.trial import choose_cache
from copyspec_eval.drafters.registry import default_drafter, drafter_factory, longest_draft
from copyspec_eval.errors import ModelError, OptionError, report_errors_in_one_line
from copyspec_eval.harness import draft_models, earlier, options
from copyspec_eval.harness.answer_cache import RequestKey, put_into_cache, request_keys
from copyspec_eval.harness.arms import Arm, options_of_arms
from copyspec_eval.harness.progress import Progress
from copyspec_eval.harness.ranks import split_documents_over_ranks
from copyspec_eval.harness.recorder import RunRecorder, check_output_folder, request_fields
from copyspec_eval.harness.requests import Prepared, RequestBuilder
from copyspec_eval.harness.run_spec import run_spec
from copyspec_eval.manifest import RunSpec
from copyspec_eval.paths import TINY, model_path
from copyspec_eval.records import BaselineTurn, RecordedText, TurnRecord
from copyspec_eval.types import (
    PAPER_DELTA,
    PAPER_GAMMA,
    DraftOptions,
    ExactMode,
    Generation,
)

report_errors_in_one_line()

logger = logging.getLogger("lm_eval.copyspec")

_AUTO_ROWS = 128
"""Tokens per step up to which a step is bound by reading the weights (B x width)."""
_USUAL_DRAFT = 15
"""Tokens of a draft that is seldom longer, where it may be."""
_MODEL_CACHE = (
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
        exact: every step has the bits of plain decoding, whatever was drafted, so that outputs are
            those of plain decoding, bit for bit.
        paired: answer every request by plain one-token decoding too, and record both; the
            conversation continues from the baseline's answer.
        arms: several ways of drafting that answer every request in turn, as with `paired`, each
            with its own settings behind `+`: `none:copyspec+gamma=5:suffix+store`.
        prefix_cache: the most host memory, in bytes or such as "2GB", for keys and values of
            earlier prompts and answers, so that what begins alike is read once; 0 for none.
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
        arms: str | list[str] | None = None,
        prefix_cache: int | str = "2GB",
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
        if arms is not None and drafter != "":
            raise OptionError(f"arms={arms!r} names the drafters; leave drafter={drafter} out")
        # lm-eval reads the word "none" as None.
        shared = DraftOptions(
            drafter=default_drafter(gamma) if drafter == "" else drafter or "none",
            gamma=PAPER_GAMMA if gamma is None else gamma,
            num_draft_tokens=num_draft_tokens,
            store=store_option(store),
            tree=tree,
            recycle=recycle,
            draft_model=draft_model,
            delta=delta,
        )
        self._options = options_of_arms(shared, arms)
        tree = any(arm.tree for arm in self._options)
        self._exact = options.check_bool("exact", exact)
        if tree and exact:
            raise OptionError("tree=true gives other bits than a chain; pass exact=false with it")
        self._paired = options.check_bool("paired", paired) or arms is not None
        self._prefix_bytes = bytes_of("prefix_cache", prefix_cache)
        self._store_paths = shared.store_paths
        earlier_answers = earlier.answers_of(self._store_paths)
        self._longest = max(map(longest_draft, self._options))
        named = isinstance(pretrained, str)
        if not named and not hasattr(pretrained, "config"):
            raise OptionError(
                f"pretrained={pretrained!r} is neither a model nor the name of one; pass a Hub "
                "name, a folder, or a loaded model"
            )
        source: Any = model_path(pretrained) if named else pretrained
        config = options.read_config(source, kwargs) if named else source.config
        options.check_names(kwargs, config)
        model_support.check_config(config)
        self._check_model_cache = partial(
            options.check_model_cache, exact=exact, tree=tree, batch_size=batch_size
        )
        self._check_model_cache(model_support.needs_model_cache(config))
        for name in {each.draft_model for each in self._options if each.draft_model}:
            tokenizer = source if named else kwargs.get("tokenizer") or config._name_or_path
            draft_models.check(name, tokenizer, kwargs)
        # lm-eval's own default is "cuda", be there such a device or not.
        device = kwargs.pop("device", None) or ("cuda" if torch.cuda.is_available() else "cpu")
        with options.loading(
            "pretrained", pretrained, "check its files, and what you pass with it"
        ):
            super().__init__(source, device=device, **kwargs)
        self.pretrained = pretrained  # the name, for people
        split_documents_over_ranks(self)
        if exact:
            model_support.check_exact(self.model)
        self._earlier = earlier.tokenised(earlier_answers, self, self._store_paths)
        self._builder = RequestBuilder(self, self._earlier)
        self._recorders = [RunRecorder(self.rank, self.world_size) for _ in self._options]
        self._arms: list[Arm] = []
        self._decoding_model: PreTrainedModel | None = None
        self._warm = False

    def generate_until(self, requests: list[Instance], disable_tqdm: bool = False) -> list[str]:
        """Answer `requests`, longest prompt first; each answer is a `RecordedText`."""
        with one_at_a_time(self.model):
            return self._generate_until(requests, disable_tqdm)

    def _generate_until(self, requests: list[Instance], disable_tqdm: bool) -> list[str]:
        keys = request_keys(requests)
        distinct = dict(zip(keys, requests, strict=True))
        jobs = [self._builder.build(request, key.repeat) for key, request in distinct.items()]
        # Of several ranks, one may well have been given documents that were not asked before.
        if jobs and not self._warm and self.world_size == 1:
            earlier.check_asked(self._store_paths, jobs)
        jobs.sort(key=lambda job: -len(job.sequence.prompt_ids))
        self.prepare()
        batch_size = self._batch_size(jobs)
        draftings = [arm.drafting for arm in self._arms]
        with self._autocast():
            engine = (
                self._engines.paired(draftings, batch_size, self._baseline_cache)
                if self._paired
                else self._engines.of(draftings[0], batch_size)
            )
        sequences = [job.sequence for job in jobs]
        engine.check(sequences)
        mode = self._engines.mode(batch_size)
        for arm in self._arms:
            costs = self._engines.costs(arm.options, batch_size)
            arm.recorder.begin(self._spec(arm, jobs, mode), costs)
        progress = Progress(len(jobs), disable=disable_tqdm or self.rank != 0)
        answers: dict[RequestKey, RecordedText] = {}

        def finish(index: int, generations: Sequence[PairedAnswer | Generation]) -> None:
            job = jobs[index]
            of_arms = [
                self._answer(arm, job, each)
                for arm, each in zip(self._arms, generations, strict=True)
            ]
            for arm, answer in zip(self._arms, of_arms, strict=True):
                arm.recorder.add(answer.record)
            answers[RequestKey(id(job.instance), job.repeat)] = of_arms[0]
            put_into_cache(self.cache_hook, job.instance, of_arms[0])
            progress.update(of_arms[0].record)

        with self._autocast():
            if jobs and not self._warm:
                engine.warm_up(sequences[0])
                self._warm = True
            if isinstance(engine, PairedEngine):
                engine.generate(sequences, finish)
            else:
                engine.generate(sequences, lambda index, generation: finish(index, [generation]))
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
        first, *others = (recorder.report() for recorder in self._recorders)
        return info | {"copyspec": first | ({"other_arms": others} if others else {})}

    def prepare(self) -> None:
        """Make engines for the model as it is now: an adapter may have been put into it since.

        `generate_until` does so by itself; log-likelihoods need none.

        Raises:
            ModelError, OptionError: the model cannot be decoded as the options say.
        """
        model = model_copy(self.model).model
        if model is self._decoding_model:
            return
        with self._autocast():
            choice = choose_cache(model, exact=self._exact, batch_size=self._rows or 2)
        self._check_model_cache(choice.reason)
        if choice.reason:
            logger.warning("%s: %s", choice.reason, _MODEL_CACHE)
            self._prefix_bytes = 0
        self.cache_kind = choice.kind
        self._engines = Engines(model, self.tokenizer, self._options, self._exact, choice.kind)
        self._arms = self._arms or self._load_arms()
        self._decoding_model = model

    def _load_arms(self) -> list[Arm]:
        """The arms, with their draft models and empty prefix caches; the baseline has one, too."""
        # One for each arm, or one would read nothing where the other had read it.
        num_arms = len(self._options) + self._paired
        each_cache = self._prefix_bytes // num_arms
        caches = [PrefixCache(each_cache) if each_cache else None for _ in range(num_arms)]
        self._baseline_cache = caches[-1]
        load = draft_models.loader(self.model.dtype, self.device, self._arguments)
        return [
            Arm(
                Drafting(each, drafter_factory(each, self._earlier.in_order), cache, load(each)),
                recorder,
            )
            for each, recorder, cache in zip(self._options, self._recorders, caches, strict=False)
        ]

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

    def _batch_size(self, jobs: list[Prepared]) -> int:
        """`--batch_size`; `auto` fills a step up to where rows stop being nearly free."""
        if self._rows:
            return self._rows
        if self.cache_kind != "copyspec":
            return 1
        width = 1 + min(self._longest, _USUAL_DRAFT)
        rows = max(1, min(_AUTO_ROWS // width, len(jobs)))
        return 1 << (rows.bit_length() - 1)

    def _answer(self, arm: Arm, job: Prepared, answered: PairedAnswer | Generation) -> RecordedText:
        if isinstance(answered, PairedAnswer):
            generation, baseline = answered.generation, answered.baseline
            text = self._text(job, baseline.generation)
        else:
            generation, baseline = answered, None
            text = self._text(job, generation)
        prompt, drafted_answer, characters = span_characters(
            lambda ids: self.tok_decode(ids, skip_special_tokens=False),
            job.sequence.prompt_ids,
            generation.token_ids,
            generation.spans,
        )
        record = TurnRecord(
            run_id=arm.recorder.run_id,
            **request_fields(job.instance, job.repeat, self.rank, job.context),
            backend="copyspec",
            drafter=arm.options.label,
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

    def _spec(self, arm: Arm, jobs: list[Prepared], mode: ExactMode | None) -> RunSpec:
        """The settings that decide the figures of an arm."""
        processors: dict[str, set[str]] = {}
        for job in jobs:
            processors.setdefault(job.instance.task_name or "", set()).update(job.processors)
        return run_spec(
            self,
            backend="copyspec",
            model=self.pretrained,
            arguments=self._arguments,
            batch_size=self.batch_size,
            requests={task: {"logits_processors": sorted(of)} for task, of in processors.items()},
            drafting=asdict(arm.options)
            | {
                "num_draft_tokens": longest_draft(arm.options),
                "steps": mode.name if mode else "any",
            }
            | {"exact": self._exact, "paired": self._paired}
            | {"prefix_cache": self._prefix_bytes}
            | {"cache": self.cache_kind, "kernels": self._kernels}
            | ({"arms": [each.label for each in self._options]} if len(self._options) > 1 else {})
            | earlier.settings(self._store_paths, self._earlier),
        )


def _baseline_turn(baseline: Baseline) -> BaselineTurn:
    generation = baseline.generation
    return BaselineTurn(generation.counts, generation.token_ids, baseline.difference)
