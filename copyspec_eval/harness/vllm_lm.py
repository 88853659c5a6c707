"""The model that `lm_eval --model copyspec-vllm` creates: lm-eval's `vllm`, drafting with ours."""

import os
from dataclasses import asdict, replace
from typing import Any
from unittest import mock

from lm_eval.api.instance import Instance

from copyspec_eval.drafters.registry import draft_text
from copyspec_eval.errors import OptionError, needing, unknown_option
from copyspec_eval.harness import options
from copyspec_eval.harness.backends import TimedAnswer
from copyspec_eval.harness.backends.vllm import modes
from copyspec_eval.harness.recorded import parameters
from copyspec_eval.harness.recorder import Asked, RunRecorder
from copyspec_eval.harness.timed import TimedLM
from copyspec_eval.manifest import RunSpec
from copyspec_eval.records import BaselineTurn, RecordedText
from copyspec_eval.serving import proposer
from copyspec_eval.session.settings import check_bool
from copyspec_eval.types import Attempt, Difference, Span, first_difference

STOCK = "none, stock vLLM"
_RUNNER = "VLLM_USE_V2_MODEL_RUNNER"
_OURS = ("speculative_config", "worker_extension_cls", "per_request_spec_decode_metrics")


class CopySpecVLLM(TimedLM):
    """`vllm` with our drafters, through its speculative method `custom_class`.

    Answers are vLLM's: it has no exact mode, and near-ties of two logits can go either way.

    Args:
        drafter, gamma, num_draft_tokens, store: as for `copyspec`.
        paired: a second engine without drafts answers every request too, with the first one's model
            runner and scheduling, which vLLM chooses by the method of drafting. The conversation
            continues from the baseline's answers.
        stock: with `paired`, an engine as vLLM sets it up without drafts is one more arm: its
            speed-up is what the older runner costs. All engines share `gpu_memory_utilization`
            equally.
        **kwargs: as for `vllm`.
    """

    model: Any

    @classmethod
    def create_from_arg_obj(
        cls, arg_dict: dict[str, Any], additional_config: dict[str, Any] | None = None
    ) -> TimedLM:
        with needing("vLLM", "copyspec-vllm", "vllm"):
            from lm_eval.models.vllm_causallms import VLLM
            from vllm import EngineArgs
        if "pretrained" not in arg_dict:
            raise OptionError("no model given; pass pretrained=NAME")
        known = set().union(*map(parameters, (CopySpecVLLM, VLLM, EngineArgs))) - {"kwargs"}
        for name in arg_dict:
            if name in ("base", *_OURS):
                raise OptionError(f"{name} is set by copyspec-vllm itself; leave it out")
            if name not in known:
                raise unknown_option("model_arg", name, known)
        return super().create_from_arg_obj({"base": "vllm"} | arg_dict, additional_config)

    def __init__(
        self,
        pretrained: str,
        drafter: str | None = "",
        gamma: int | None = None,
        num_draft_tokens: int = proposer.NUM_DRAFT_TOKENS,
        store: bool | str | list[str] = False,
        paired: bool = False,
        stock: bool = False,
        gpu_memory_utilization: float = 0.9,  # vLLM's own
        **kwargs: Any,
    ) -> None:
        drafting = options.drafting(drafter, gamma, store, num_draft_tokens=num_draft_tokens)
        if num_draft_tokens == 0:
            raise OptionError("num_draft_tokens must be at least 1 for vLLM, got 0")
        proposer.drafters(drafting)  # refuses what the workers could not draft with
        if not check_bool("paired", paired) and check_bool("stock", stock):
            raise OptionError("stock=True is an arm of a paired run; pass paired=True with it")
        # The workers may be other processes.
        os.environ[proposer.VARIABLE] = draft_text(drafting)
        ours: dict[str, Any] = {"method": "custom_class", "model": proposer.NAME}
        super().__init__(
            pretrained,
            gpu_memory_utilization=gpu_memory_utilization / (1 + paired + stock),
            speculative_config=ours | {"num_speculative_tokens": num_draft_tokens},
            worker_extension_cls=proposer.WORKER,
            **kwargs,
        )
        self.base_name, self.drafter = "copyspec-vllm", drafting.label
        self.drafting = asdict(drafting) | {"paired": paired}
        self._drafting: Any = self.model
        self._engines = {"drafting": self._drafting}
        plain = {k: v for k, v in self.model_args.items() if k not in _OURS}
        config = self._vllm_config
        if paired:
            runner = str(int(getattr(config, "use_v2_model_runner", False)))
            pinned = {"async_scheduling": config.scheduler_config.async_scheduling}
            with mock.patch.dict(os.environ, {_RUNNER: runner}):
                self._engines["baseline"] = type(self.model)(**plain | pinned)
        if stock:
            self._engines["stock"] = type(self.model)(**plain)
            self._stock = RunRecorder(self.rank, self.world_size)

    def ask(self, group: list[Instance]) -> tuple[list[str], list[TimedAnswer]]:
        answers = {}
        for name in self._engines:
            self.model = self._engines[name]
            answers[name] = super().ask(group)
        first, *others = self._engines  # which goes first changes with every group
        self._engines = {name: self._engines[name] for name in (*others, first)}
        self.model = self._drafting
        texts, plain = answers.pop("baseline", ([], []))
        if not texts:
            return answers["drafting"]
        arms = {
            name: [a._replace(baseline=_baseline(a, b)) for a, b in zip(timed, plain, strict=True)]
            for name, (_, timed) in answers.items()
        }
        self._by_stock = iter(arms.get("stock", ()))
        return texts, arms["drafting"]

    def begin(self, spec: RunSpec) -> None:
        super().begin(spec)
        if stock := self._engines.get("stock"):
            environment = spec.environment | modes(stock.llm_engine.vllm_config)
            self._stock.begin(replace(spec, drafting={"paired": True}, environment=environment))

    def record(self, job: Asked, text: str, answer: TimedAnswer) -> RecordedText:
        if "stock" in self._engines:
            how: Any = {"backend": "vllm", "drafter": STOCK, "batch_size": self._rows}
            self._stock.add(job, text, next(self._by_stock), **how)
        return super().record(job, text, answer)

    def get_model_info(self) -> dict[str, Any]:
        info = super().get_model_info()
        if "stock" in self._engines:
            info["copyspec"] |= {"other_arms": [self._stock.report()]}
        return info

    def drafted(self, output: Any, num_forwards: int) -> proposer.Drafted | None:
        """What the proposer has recorded, since vLLM counts drafts that are not ours as well."""
        if self.model is not self._drafting:
            return proposer.Drafted()
        made, spans = self._drafted[output.request_id]
        attempts = [Attempt(*attempt) for attempt in made]
        metrics = output.outputs[0].spec_decode_metrics
        if metrics and len(metrics.per_step_drafted) == len(attempts):
            # The scheduler can cut a draft without the proposer knowing.
            lengths = zip(attempts, metrics.per_step_drafted, strict=True)
            attempts = [attempt._replace(num_drafted=length) for attempt, length in lengths]
        return proposer.Drafted(attempts, [Span(*span) for span in spans])

    def _model_generate(self, *args: Any, **kwargs: Any) -> list[Any]:
        outputs: list[Any] = super()._model_generate(*args, **kwargs)
        if self.model is self._drafting:
            texts = [(list(o.prompt_token_ids), list(o.outputs[0].token_ids)) for o in outputs]
            by_worker = self.model.collective_rpc("copyspec_drafted", args=(texts,))
            # vLLM verifies the drafts of the first worker of the last stage.
            drafted = next(each for each in by_worker if each is not None)
            self._drafted = dict(zip([each.request_id for each in outputs], drafted, strict=True))
        return outputs

    def _warm_up(self, job: Any) -> None:
        super()._warm_up(job)
        self._drafting.collective_rpc("copyspec_restart")


def _baseline(drafted: TimedAnswer, plain: TimedAnswer) -> BaselineTurn:
    """The baseline's side; only `compare --rescore` finds out why answers differ."""
    ids, plain_ids = drafted.token_ids or (), plain.token_ids or ()
    place, difference = first_difference(ids, plain_ids), None
    if place is not None:
        a, b = (each[place] if place < len(each) else None for each in (ids, plain_ids))
        difference = Difference(place, a, b, margin=None, noise=0.0)
    return BaselineTurn(plain.counts, plain_ids, difference)
