"""Requests put to an engine, and what transformers' own `generate` answers to them."""

from collections.abc import Callable, Iterable
from collections.abc import Sequence as Tokens
from typing import Any

import torch
from transformers import AutoModelForCausalLM, LogitsProcessorList

from copyspec_eval.decoding.choosing import TokenChooser
from copyspec_eval.decoding.engine import Engine
from copyspec_eval.decoding.sequence import Sequence
from copyspec_eval.decoding.stopping import StopRule
from copyspec_eval.drafters.base import NoDrafter
from copyspec_eval.drafters.registry import DrafterFactory, drafter_factory
from copyspec_eval.types import DraftOptions, ExactMode

SUFFIX = DraftOptions("suffix")


def greedy(*processors: Any) -> TokenChooser:
    return TokenChooser(LogitsProcessorList(processors), do_sample=False)


def sampling(*processors: Any, seed: int = 0) -> TokenChooser:
    return TokenChooser(LogitsProcessorList(processors), do_sample=True, seed=seed)


def asked(
    prompts: Iterable[Tokens[int]], budget: int, chooser: Callable[[], TokenChooser] = greedy
) -> list[Sequence]:
    return [Sequence(tuple(ids), StopRule(budget), chooser()) for ids in prompts]


def engine(
    model: Any,
    drafting: DraftOptions | DrafterFactory = NoDrafter,
    exact: ExactMode | None = None,
    num_draft_tokens: int = 10,
    **options: Any,
) -> Engine:
    factory = drafter_factory(drafting) if isinstance(drafting, DraftOptions) else drafting
    return Engine(model, factory, num_draft_tokens=num_draft_tokens, exact=exact, **options)


def model_from(config: Any, std: float | None = 0.3, dtype: torch.dtype = torch.float32) -> Any:
    """A random model; its weights are spread widely, so that the argmax is rarely a near-tie."""
    torch.manual_seed(0)
    auto: Any = AutoModelForCausalLM
    model = auto.from_config(config, dtype=dtype).eval()
    for parameter in model.parameters():
        if std and parameter.dim() > 1:
            torch.nn.init.normal_(parameter, std=std)
    return model


def generated(model: Any, prompt: Tokens[int], budget: int, **settings: Any) -> list[int]:
    ids = torch.tensor([prompt])
    options = {"do_sample": False, "max_new_tokens": budget, "pad_token_id": 0, **settings}
    output = model.generate(ids, attention_mask=torch.ones_like(ids), **options)
    answer: list[int] = output[0, len(prompt) :].tolist()
    return answer
