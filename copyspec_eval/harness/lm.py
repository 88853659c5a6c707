"""The model that `lm_eval --model copyspec` creates: lm-eval's `hf`, with generation replaced."""

from __future__ import annotations

import hashlib
import logging
from collections import Counter
from dataclasses import asdict
from typing import Any, NamedTuple

import torch
from lm_eval.api.instance import Instance
from lm_eval.api.registry import register_model
from lm_eval.models.huggingface import HFLM
from lm_eval.models.utils import postprocess_generated_text

from copyspec_eval import provenance
from copyspec_eval.decoding import serving
from copyspec_eval.decoding.engine import Engine, exact_width
from copyspec_eval.drafters.registry import drafter_factory
from copyspec_eval.errors import ModelError, OptionError, report_errors_in_one_line
from copyspec_eval.harness import options
from copyspec_eval.harness.recording import Progress, RunRecorder
from copyspec_eval.harness.requests import Prepared, RequestBuilder
from copyspec_eval.records import RecordedText, TurnRecord
from copyspec_eval.reports import table
from copyspec_eval.types import DraftOptions, Generation

report_errors_in_one_line()

# Under lm-eval's own logger, so that its verbosity and its handler are ours too.
logger = logging.getLogger("lm_eval.copyspec")

_AUTO_ROWS = 128
"""Tokens per step up to which a step is bound by reading the weights (B x width)."""


@register_model("copyspec")
class CopySpecLM(HFLM):
    """`hf` with CopySpec decoding.

    Loading, chat templates, log-likelihoods and data parallelism are lm-eval's own.

    Args:
        pretrained: as for `hf`: a Hub name, a folder, or a loaded model.
        drafter: name of a drafter; `none` decodes token by token.
        gamma: the paper's γ, how many trailing tokens must have occurred before.
        num_draft_tokens: how many tokens to copy per attempt.
        exact: every step has the same width, so that every drafter gives the same bits.
        **kwargs: everything else that `hf` takes.

    Raises:
        OptionError, ModelError: before any weight is loaded, for an argument that does not exist
            or a model that cannot be served.
    """

    def __init__(
        self,
        pretrained: Any = None,
        drafter: str | None = "copyspec",
        gamma: int = 3,
        num_draft_tokens: int = 10,
        exact: bool = True,
        **kwargs: Any,
    ) -> None:
        if pretrained is None:
            raise OptionError("no model given; pass --model_args pretrained=NAME_OR_FOLDER")
        options.check_batch_size(kwargs.get("batch_size", 1))
        # lm-eval reads the word "none" as None.
        self._draft_options = DraftOptions(drafter or "none", gamma, num_draft_tokens)
        self._exact = options.check_bool("exact", exact)
        self._make_drafter = drafter_factory(self._draft_options)
        self._width = exact_width(num_draft_tokens) if exact else None
        given = isinstance(pretrained, str)
        config = options.read_config(pretrained, kwargs) if given else pretrained.config
        options.check_names(kwargs, config)
        serving.check_config(config)
        super().__init__(pretrained, **kwargs)
        self._split_documents_over_ranks()
        if exact:
            serving.check_exact(self.model)
        serving.probe(self.model, exact)
        self._builder = RequestBuilder(self)
        self._recorder = RunRecorder(self.rank, self.world_size)
        provenance.run_id()

    def generate_until(self, requests: list[Instance], disable_tqdm: bool = False) -> list[str]:
        """Answer `requests`, longest prompt first; each answer is a `RecordedText`."""
        keys = _answer_keys(requests)
        asked = dict(zip(keys, requests, strict=True))
        jobs = [self._builder.build(request, key.repeat) for key, request in asked.items()]
        jobs.sort(key=lambda job: -len(job.request.prompt_ids))
        engine = self._engine(jobs)
        engine.check([job.request for job in jobs])
        self._recorder.begin(self._describe(jobs))
        progress = Progress(len(jobs), disable=disable_tqdm or self.rank != 0)
        answers: dict[_AnswerKey, RecordedText] = {}

        def finish(index: int, generation: Generation) -> None:
            answer = self._answer(jobs[index], generation)
            answers[_AnswerKey(id(jobs[index].instance), jobs[index].repeat)] = answer
            self._cache(jobs[index], answer)
            self._recorder.add(answer.record)
            progress.update(answer.record)

        with torch.autocast(
            device_type=self.device.type,
            dtype=self.mixed_precision_dtype,
            enabled=self.mixed_precision_dtype is not None,
        ):
            engine.generate([job.request for job in jobs], finish)
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
        rows = self._recorder.all_rows()
        if rows:
            logger.info("what was copied, and how fast:\n%s", table.render(rows))
        return info | {"copyspec": table.figures(rows)}

    def _split_documents_over_ranks(self) -> None:
        """Make every launched process a rank of its own, on CPUs and over machines too.

        `hf` does so only where it sees several GPUs, and numbers the ranks within each machine.
        """
        accelerator = getattr(self, "accelerator", None)
        if accelerator is not None and accelerator.num_processes > 1:
            self._rank = accelerator.process_index
            self._world_size = accelerator.num_processes

    def _cache(self, job: Prepared, answer: RecordedText) -> None:
        """Put an answer into lm-eval's `--use_cache`, and on the disk: a kill must not lose it."""
        self.cache_hook.add_partial("generate_until", job.instance.args, answer)
        if self.cache_hook.dbdict is not None:
            self.cache_hook.dbdict.commit(blocking=True)

    def _engine(self, jobs: list[Prepared]) -> Engine:
        return Engine(
            self.model,
            self._make_drafter,
            num_draft_tokens=self._draft_options.num_draft_tokens,
            exact=self._exact,
            batch_size=self._batch_size(jobs),
        )

    def _batch_size(self, jobs: list[Prepared]) -> int:
        """`--batch_size`; `auto` fills a step up to where rows stop being nearly free."""
        if self.batch_size != "auto":
            return int(self.batch_size)
        width = self._width or 1 + self._draft_options.num_draft_tokens
        rows = max(1, min(_AUTO_ROWS // width, len(jobs)))
        return 1 << (rows.bit_length() - 1)

    def _answer(self, job: Prepared, generation: Generation) -> RecordedText:
        text = self._text(job, generation)
        instance = job.instance
        attempts = tuple((a.num_drafted, a.num_accepted) for a in generation.attempts)
        record = TurnRecord(
            run_id=provenance.run_id(),
            task=instance.task_name or "",
            doc_id=-1 if instance.doc_id is None else instance.doc_id,
            turn=getattr(instance, "turn", 1),
            repeat=job.repeat,
            category=_category(instance),
            rank=self.rank,
            drafter=self._draft_options.drafter,
            exact=self._exact,
            batch_size=generation.batch_size,
            prompt_sha256=hashlib.sha256(job.context.encode()).hexdigest(),
            num_prompt_tokens=len(job.request.prompt_ids),
            num_tokens=len(generation.token_ids),
            num_forwards=generation.num_forwards,
            num_attempts=len(attempts),
            num_drafted=sum(drafted for drafted, _ in attempts),
            num_accepted=sum(accepted for _, accepted in attempts),
            prefill_seconds=generation.prefill_seconds,
            decode_seconds=generation.decode_seconds,
            latency_seconds=generation.latency_seconds,
            finish_reason=generation.finish_reason,
            attempts=attempts,
            spans=tuple((s.start, s.length, s.source) for s in generation.spans),
            token_ids=generation.token_ids,
            text=text,
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

    def _describe(self, jobs: list[Prepared]) -> dict[str, Any]:
        """The settings that decide this run's numbers, for the manifest."""
        return {
            "pretrained": self.pretrained if isinstance(self.pretrained, str) else "(an object)",
            "model_type": self.model.config.model_type,
            "revision": self.revision,
            "dtype": str(self.model.dtype),
            "device": str(self.device),
            "ranks": self.world_size,
            **asdict(self._draft_options),
            "exact": self._exact,
            "width": self._width,
            "batch_size": self._batch_size(jobs),
            "logits_processors": sorted({name for job in jobs for name in job.processors}),
        }


class _AnswerKey(NamedTuple):
    """One answer to give: the instance (by identity, as lm-eval hands it on) and its repeat."""

    instance: int
    repeat: int


def _answer_keys(requests: list[Instance]) -> list[_AnswerKey]:
    """The answer that belongs to each request.

    lm-eval lists an instance `repeats` times for as many answers, and the last one once more for
    each document that other ranks have over; the latter get an answer that is there already.
    """
    times: Counter[int] = Counter()
    keys = []
    for request in requests:
        keys.append(_AnswerKey(id(request), times[id(request)] % (request.repeats or 1)))
        times[id(request)] += 1
    return keys


def _category(instance: Instance) -> str:
    return str(instance.doc.get("category", "")) if isinstance(instance.doc, dict) else ""
