"""What becomes of one architecture: the tokens of `generate`, or a refusal in one line."""

import copy
import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

import torch
from transformers import LogitsProcessorList, PreTrainedModel

from copyspec_eval.decoding.choosing import TokenChooser
from copyspec_eval.decoding.engine import Engine
from copyspec_eval.decoding.model_cache import ModelCache
from copyspec_eval.decoding.model_support import check_config, check_exact, has_experts
from copyspec_eval.decoding.sequence import Sequence
from copyspec_eval.decoding.stopping import StopRule
from copyspec_eval.decoding.trial import MOST_ROUNDING, check_cache, choose_cache
from copyspec_eval.drafters.registry import drafter_factory
from copyspec_eval.errors import ModelError
from copyspec_eval.types import CacheKind, DraftOptions, Generation, first_difference
from matrix import shapes

Tokens = tuple[int, ...]

BUDGET = 24
_PROMPT_LENGTHS = (33, 18, 27)
_BATCH_SIZES = (1, 2)


@dataclass(frozen=True, slots=True)
class Outcome:
    """Of an architecture.

    Attributes:
        architecture: of `shapes.architectures`.
        kind: `wrong` and `crashed` are defects.
        detail: the reason, in one line, or what else there is to say.
        cache: whose cache serves it; "" if none does.
    """

    architecture: str
    kind: Literal["equal", "refused", "not built", "wrong", "crashed"]
    detail: str = ""
    cache: CacheKind | Literal[""] = ""


def outcome(architecture: str) -> Outcome:
    """Build, check, probe and decode one architecture."""
    try:
        config = shapes.tiny_config(architecture)
        check_config(config)
        model = shapes.tiny_model(config)
    except ModelError as error:
        return Outcome(architecture, "refused", str(error))
    except shapes.NotBuiltError as error:
        return _unbuilt(architecture, str(error))
    try:
        cache = choose_cache(model, exact=False, batch_size=max(_BATCH_SIZES)).kind
        return _decoded(architecture, model, cache)
    except ModelError as error:
        return Outcome(architecture, "refused", str(error))
    except Exception as error:
        return Outcome(architecture, "crashed", shapes.one_line(error))


def _unbuilt(architecture: str, reason: str) -> Outcome:
    """What its own defaults say, where no tiny config does."""
    try:
        check_config(shapes.config_class(architecture)())
    except ModelError as error:
        return Outcome(architecture, "refused", str(error))
    except Exception:
        pass
    return Outcome(architecture, "not built", reason)


def _decoded(architecture: str, model: PreTrainedModel, cache: CacheKind) -> Outcome:
    """Answers with drafts, alone and in a batch, compared with `generate` token by token."""
    note = ""
    for batch_size in _BATCH_SIZES if cache == "copyspec" else (1,):
        answers = _answers(model, batch_size, cache)
        for prompt, wanted, answer in zip(prompts(), _wanted(model), answers, strict=True):
            place = first_difference(answer.token_ids, wanted)
            if place is None:
                continue
            given = answer.token_ids[place : place + 1], wanted[place : place + 1]
            if not all(given) or not _near_tie(model, prompt + wanted[:place], given):
                where = f"token {place} of a prompt of {len(prompt)}, batch size {batch_size}"
                return Outcome(architecture, "wrong", where, cache)
            note = "but for near-ties"
    if cache == "copyspec" and not note:
        note = _exact_mode(model)
    return Outcome(architecture, "equal", note, cache)


def prompts() -> list[Tokens]:
    """Longer than the windows, with repeats in them, so that copying has something to find."""
    source = random.Random(1)
    made = []
    for length in _PROMPT_LENGTHS:
        half = [source.randrange(3, shapes.VOCABULARY) for _ in range((length + 1) // 2)]
        made.append(tuple((half + half)[:length]))
    return made


def _wanted(model: PreTrainedModel) -> Iterator[Tokens]:
    generating: Any = model
    for prompt in prompts():
        ids = torch.tensor([prompt])
        output = generating.generate(
            ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=BUDGET
        )
        yield tuple(output[0, len(prompt) :].tolist())


def _answers(model: PreTrainedModel, batch_size: int, cache: CacheKind) -> list[Generation]:
    factory = drafter_factory(DraftOptions("copyspec", gamma=1))
    engine = Engine(
        model, factory, num_draft_tokens=10, exact=None, batch_size=batch_size, cache=cache
    )
    chooser = TokenChooser(LogitsProcessorList(), do_sample=False)
    return engine.generate([Sequence(prompt, StopRule(BUDGET), chooser) for prompt in prompts()])


@torch.inference_mode()
def _near_tie(model: PreTrainedModel, prefix: Tokens, tokens: tuple[Tokens, Tokens]) -> bool:
    """Whether float64 finds two tokens after `prefix` so close that float32 cannot tell them."""
    precise: Any = copy.deepcopy(model).double()
    if precise._can_set_experts_implementation():
        precise.set_experts_implementation("eager")  # the usual one knows no float64
    logits = ModelCache(precise).read_without(prefix, keep=1)[0]
    margin = (logits[list(tokens[0])] - logits[list(tokens[1])]).abs()
    return bool(margin <= MOST_ROUNDING[torch.float32] * logits.std())


def _exact_mode(model: PreTrainedModel) -> str:
    """Why exact mode refuses a model that is served without it; "" if it does not."""
    if not has_experts(model):
        return ""
    try:
        check_exact(model)
        check_cache(model, "copyspec", exact=True, batch_size=max(_BATCH_SIZES))
    except ModelError as error:
        return f"exact mode: {error}"
    return ""
