"""The model that `lm_eval --model copyspec` creates: lm-eval's `hf`, with generation replaced."""

import itertools
from collections.abc import Sequence
from dataclasses import asdict
from functools import partial
from typing import Any

import torch
from lm_eval.api.instance import Instance
from lm_eval.models.huggingface import HFLM
from lm_eval.models.utils import postprocess_generated_text

from copyspec_eval.decoding import kernels, model_support
from copyspec_eval.decoding.draft_model import DraftModel
from copyspec_eval.decoding.prefix_cache import PrefixCache
from copyspec_eval.drafters.registry import drafter_factory, longest_draft, store_text
from copyspec_eval.errors import ModelError, OptionError
from copyspec_eval.harness import evaluation, options, requests
from copyspec_eval.harness.backends import TimedAnswer
from copyspec_eval.harness.backends.hf import split_documents_over_ranks
from copyspec_eval.harness.recorder import Answers, Asked, RunRecorder, logger, run_spec
from copyspec_eval.harness.requests import Prepared
from copyspec_eval.manifest import RunSpec
from copyspec_eval.pairs.paired import PairedAnswer, PairedEngine
from copyspec_eval.paths import TINY, model_path
from copyspec_eval.records import BaselineTurn, RecordedText
from copyspec_eval.reports.earlier_runs import EarlierAnswers
from copyspec_eval.session.loading import loading
from copyspec_eval.session.session import Arm, Session, one_at_a_time
from copyspec_eval.session.settings import check_bool, check_model_cache, parse_arms, parse_bytes
from copyspec_eval.types import Generation

_AUTO_TOKENS = 128  # of a step, over all rows, up to which reading the weights bounds its time
_USUAL_DRAFT = 15  # tokens; few drafts are longer


class CopySpecLM(HFLM):
    """`hf` with CopySpec decoding; all but `generate_until` is lm-eval's.

    Args:
        pretrained: as for `hf`: a Hub name, a folder, or a loaded model; by default
            `copyspec-tiny`, the embedded model.
        drafter, gamma, num_draft_tokens, tree, delta, exact: as for `generate` in Python.
        store: also copy from earlier answers of the run; or the folder of an earlier run, several
            as a list or with `:` between them, to copy from its answers too.
        draft_model: the name of a smaller model that drafts where the drafter does not.
        paired: answer every request by plain one-token decoding too, and record both; the
            conversation continues from the baseline's answer.
        arms: several ways of drafting that answer every request in turn, as with `paired`, each
            with its own settings after `+`: `none:copyspec+gamma=5:suffix+store`.
        prefix_cache: the most host memory, in bytes or e.g. "2GB", for keys and values of earlier
            prompts and answers, so that a shared beginning is read once; 0 for none.
        **kwargs: everything else that `hf` takes.
    """

    def __init__(
        self,
        pretrained: Any = None,
        exact: bool = True,
        paired: bool = False,
        arms: str | list[str] | None = None,
        prefix_cache: int | str = "2GB",
        **kwargs: Any,
    ) -> None:
        if pretrained is None:
            logger.warning("no model given: this is the embedded %s; pass pretrained=NAME", TINY)
            pretrained = TINY
        drafting = {name: kwargs.pop(name) for name in options.DRAFTING & kwargs.keys()}
        options.check_values(kwargs)
        evaluation.check_output_folder()
        self._arguments = dict(kwargs)
        if arms is not None and (drafter := drafting.get("drafter", "")) != "":
            raise OptionError(f"arms={arms!r} names the drafters; leave drafter={drafter} out")
        shared = options.drafting(**drafting)
        self._exact = check_bool("exact", exact)
        self._options = parse_arms(shared, arms, exact=exact)
        self._paired = check_bool("paired", paired) or arms is not None
        self._prefix_bytes = parse_bytes("prefix_cache", prefix_cache)
        self._store_paths = shared.store_paths
        answers = requests.earlier_answers(self._store_paths)
        self._load(pretrained, kwargs)
        self._earlier = EarlierAnswers(requests.tokenised(answers, self, self._store_paths))
        self._builder = requests.RequestBuilder(self, self._earlier)
        self._recorders = [RunRecorder(self.rank, self.world_size) for _ in self._options]
        self._arms: list[Arm] = []
        self._groups = itertools.count()  # of paired answers
        self._warm = False

    def _load(self, pretrained: Any, kwargs: dict[str, Any]) -> None:
        source = model_path(pretrained) if isinstance(pretrained, str) else pretrained
        config: Any = options.checked_config(source, kwargs)
        reason, batch_size = model_support.needs_model_cache(config), kwargs.get("batch_size", 1)
        check_model_cache(reason, self._options, exact=self._exact, batch_size=batch_size)
        for name in self._draft_models:
            named = source if isinstance(source, str) else config._name_or_path
            options.check_draft_model(name, kwargs.get("tokenizer") or named, kwargs)
        # lm-eval's default is "cuda", whether there is such a device or not.
        device = kwargs.pop("device", None) or ("cuda" if torch.cuda.is_available() else "cpu")
        with loading("pretrained", pretrained, "check its files and the model arguments"):
            super().__init__(source, device=device, **kwargs)
        self.pretrained = pretrained  # the name, for people
        split_documents_over_ranks(self)
        if self._exact:
            model_support.check_exact(self.model)

    def _create_tokenizer(self, pretrained: Any, tokenizer: Any, **kwargs: Any) -> None:
        named = getattr(tokenizer or pretrained, "name_or_path", tokenizer or pretrained)
        with loading("tokenizer", named, "pass tokenizer=NAME of one that fits the model"):
            super()._create_tokenizer(pretrained, tokenizer, **kwargs)

    def generate_until(self, requests: list[Instance], disable_tqdm: bool = False) -> list[str]:
        """Answer `requests`, longest prompt first; each answer is a `RecordedText`."""
        with one_at_a_time(self.model), self._autocast():
            return self._generate_until(Answers(self, requests, disable_tqdm))

    def _generate_until(self, answers: Answers) -> list[str]:
        jobs = [self._builder.prepare(asked) for asked in answers.asked]
        is_first = jobs and not self._warm
        # One of several ranks may have only documents that were not asked before.
        is_checked = is_first and self._store_paths and self.world_size == 1
        if is_checked and not any(job.sequence.earlier for job in jobs):
            raise OptionError(
                f"store={store_text(self._store_paths)}: no answer to a document of "
                f"{jobs[0].asked.instance.task_name}; name a run of the same task and documents"
            )
        jobs.sort(key=lambda job: -len(job.sequence.prompt_ids))
        session = self.prepare()
        batch_size = self._batch_size(session, jobs)
        engine: Any
        engine, *others = (session.engine(arm, batch_size) for arm in self._arms)
        if self._paired:
            caches = self._baseline_cache, self._groups
            engine = PairedEngine(session.model, [engine, *others], *caches)
        sequences = [job.sequence for job in jobs]
        engine.check(sequences)
        for arm, recorder in zip(self._arms, self._recorders, strict=True):
            recorder.begin(self._spec(session, arm, answers.asked, batch_size))

        def finish(index: int, generated: Generation | Sequence[PairedAnswer]) -> None:
            by_arm: Any = [generated] if isinstance(generated, Generation) else generated
            recorded = zip(self._arms, self._recorders, by_arm, strict=True)
            text, *_ = [self._record(jobs[index], *each) for each in recorded]
            answers.add(jobs[index].asked, text)

        if is_first:
            engine.warm_up(sequences[0])
            self._warm = True
        with answers.bar():
            engine.generate(sequences, finish)
        return answers.texts()

    def chat_template(self, chat_template: bool | str = False) -> str | None:
        if chat_template and not getattr(self.tokenizer, "chat_template", None):
            raise ModelError(
                f"the tokenizer of {self.pretrained!r} has no chat template; leave "
                "--apply_chat_template out, or pass tokenizer=NAME of one that has"
            )
        return super().chat_template(chat_template)  # type: ignore[no-any-return]

    def get_model_info(self) -> dict[str, Any]:
        info: dict[str, Any] = super().get_model_info()
        first, *others = (recorder.report() for recorder in self._recorders)
        return info | {"copyspec": first | ({"other_arms": others} if others else {})}

    def prepare(self) -> Session:
        """The session of the model as it is now, e.g. with an adapter that is new in it."""
        rows: Any = {"rows": self._rows or 2, "needs_rows": self._rows is not None}
        with self._autocast():
            session = Session(self.model, self.tokenizer, self._options, exact=self._exact, **rows)
        self._arms = self._arms or self._load_arms(session.reason)
        return session

    def _load_arms(self, reason: str) -> list[Arm]:
        if reason:
            logger.warning(
                f"{reason}: the model's own attention and cache are used, one request at a time, "
                "without the prefix cache"
            )
            self._prefix_bytes = 0
        # Arms that shared a cache would find in it what another arm had read.
        num_caches = len(self._options) + self._paired
        num_bytes = self._prefix_bytes // num_caches
        caches = [PrefixCache(num_bytes) if num_bytes else None for _ in range(num_caches)]
        self._baseline_cache = caches[-1]
        how = self.model.dtype, self.device, self._arguments
        drafting = {name: options.load_draft_model(name, *how) for name in self._draft_models}
        arms = []
        for each, cache in zip(self._options, caches, strict=False):
            small = DraftModel(drafting[each.draft_model], each.delta) if each.draft_model else None
            arms.append(Arm(each, drafter_factory(each, self._earlier.in_order), cache, small))
        return arms

    @property
    def _draft_models(self) -> set[str]:
        return {each.draft_model for each in self._options if each.draft_model}

    @property
    def _rows(self) -> int | None:
        return None if self.batch_size == "auto" else int(self.batch_size)

    def _autocast(self) -> torch.autocast:
        dtype = self.mixed_precision_dtype
        return torch.autocast(self.device.type, dtype, enabled=dtype is not None)

    def _batch_size(self, session: Session, jobs: list[Prepared]) -> int:
        """`--batch_size`; with `auto`, as many rows as are nearly free."""
        if self._rows:
            return self._rows
        if session.reason:
            return 1
        width = 1 + min(max(map(longest_draft, self._options)), _USUAL_DRAFT)
        rows = max(1, min(_AUTO_TOKENS // width, len(jobs)))
        return 1 << (rows.bit_length() - 1)

    def _record(
        self, job: Prepared, arm: Arm, recorder: RunRecorder, answer: PairedAnswer | Generation
    ) -> RecordedText:
        baseline = None
        if isinstance(answer, PairedAnswer):
            plain = answer.baseline
            baseline = BaselineTurn(plain.counts, plain.token_ids, answer.difference)
            answer = answer.generation
        text = self._text(job, baseline.token_ids if baseline else answer.token_ids)
        ids, made = (answer.token_ids, job.sequence.prompt_ids), (answer.attempts, answer.spans)
        timed = TimedAnswer(answer.counts, *ids, *made, baseline)
        decode = partial(self.tok_decode, skip_special_tokens=False)
        ours = {"drafter": arm.options.label, "batch_size": answer.batch_size}
        return recorder.add(job.asked, text, timed, decode, backend="copyspec", **ours)

    def _text(self, job: Prepared, answer_ids: Sequence[int]) -> str:
        """The answer's text, cut as by `HFLM.generate_until`: without thinking and stops."""
        token_ids, marker = list(answer_ids), self.think_end_token
        if isinstance(marker, int) and marker in token_ids:
            token_ids = token_ids[len(token_ids) - token_ids[::-1].index(marker) :]
        text: str = self.tok_decode(token_ids)
        if isinstance(marker, int):
            text = text.lstrip()
        before = marker if isinstance(marker, str) else None
        return str(postprocess_generated_text(text, stop=job.until, think_end_token=before))

    def _spec(self, session: Session, arm: Arm, asked: list[Asked], batch_size: int) -> RunSpec:
        mode = session.mode(batch_size)
        is_ours = session.cache == "copyspec" and kernels.serve(self.model)
        settings = {
            "exact": self._exact,
            "paired": self._paired,
            "prefix_cache": self._prefix_bytes,
            **asdict(arm.options),
            "num_draft_tokens": longest_draft(arm.options),
            "steps": mode.name if mode else "any",
            "cache": session.cache,
            "kernels": "copyspec" if is_ours else "torch",
        }
        if len(self._options) > 1:  # a single arm is in the drafting options
            settings["arms"] = [each.label for each in self._options]
        if self._store_paths:
            settings["store"] = store_text(self._store_paths)
            settings["store_sha256"] = self._earlier.digest
        given, processors = self._arguments, self._builder.processor_names
        how = {"backend": "copyspec", "batch_size": self.batch_size}
        return run_spec(self, self.pretrained, given, asked, processors, settings, **how)
