"""Where two answers part, and whether rounding explains it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations

import torch
from transformers import PreTrainedModel

from copyspec_eval.decoding.engine import Engine, Request
from copyspec_eval.decoding.serving import MOST_ROUNDING, has_experts
from copyspec_eval.types import Difference, first_difference

NOISE_WINDOW = 64
"""Last positions, in tokens, over which rounding is measured."""


@dataclass(frozen=True, slots=True)
class Rescored:
    """What a model says after some tokens of an answer, and how surely.

    Attributes:
        request: what is answered.
        output_ids: the answer's tokens so far.
        logits: `[vocabulary]`, float32, of plain one-token decoding.
        noise: see `Rescorer`.
    """

    request: Request
    output_ids: Sequence[int]
    logits: torch.Tensor
    noise: float

    def margin(self, *tokens: int) -> float | None:
        """By how much the logits would have to change for the model to choose any of `tokens`.

        The largest of their `TokenChooser.margin`; None if one has none.
        """
        prefix = [*self.request.prompt_ids, *self.output_ids]
        largest = 0.0
        for token in tokens:
            self.request.chooser.restart(len(self.output_ids))
            margin = self.request.chooser.margin(prefix, self.logits, token)
            if margin is None:
                return None
            largest = max(largest, margin)
        return largest


class Rescorer:
    """Reads an answer again in ways that are equal but for rounding, to see how far that reaches.

    The ways: by the model's own forward, at once; in one-token steps; in the steps of the engine
    whose answers are judged. The noise is the largest difference of any logit between any two of
    them, over the last `NOISE_WINDOW` positions and the whole vocabulary, and at least what the
    dtype resolves: one unit in the last place of the largest logit. So it is that of this model,
    dtype, device and text, and no constant.

    A noise beyond what rounding can do to a model without experts means that a forward is wrong. It
    is given as 0 then, and excuses nothing. (Rounding can turn a router's choice of experts, and
    that moves logits by any amount.)

    Args:
        model: the model that gave the answers.
        plain: an engine of that model that decodes one token a step.
        engine: the engine whose answers are judged.
    """

    def __init__(self, model: PreTrainedModel, plain: Engine, engine: Engine) -> None:
        self._model = model
        self._engines = (plain, engine)

    def explain(
        self, request: Request, answer: Sequence[int], baseline: Sequence[int]
    ) -> Difference | None:
        """The first difference of two answers to `request` with its margin; None if equal.

        Args:
            request: what was answered; its chooser is used up.
            answer: the tokens to judge.
            baseline: those of plain one-token decoding.
        """
        position = first_difference(answer, baseline)
        if position is None:
            return None
        if position >= min(len(answer), len(baseline)):
            # One ended where the other, with the same tokens and the same rule, did not.
            ended = [ids[position] if position < len(ids) else None for ids in (answer, baseline)]
            return Difference(position, ended[0], ended[1], margin=None, noise=0.0)
        rescored = self.rescore(request, baseline[:position])
        tokens = answer[position], baseline[position]
        margin = rescored.margin(*tokens)
        return Difference(position, *tokens, margin, rescored.noise)

    @torch.inference_mode()
    def rescore(self, request: Request, output_ids: Sequence[int]) -> Rescored:
        """The logits that choose the token after `output_ids`, and their noise."""
        text = torch.tensor([[*request.prompt_ids, *output_ids]], device=self._model.device)
        keep = min(NOISE_WINDOW, 1 + len(output_ids))
        own = self._model(input_ids=text, use_cache=False, logits_to_keep=keep).logits[0].float()
        readings = [own, *(engine.read(request, output_ids, keep) for engine in self._engines)]
        noise = max(float((one - other).abs().max()) for one, other in combinations(readings, 2))
        possible = has_experts(self._model) or noise <= MOST_ROUNDING * float(own.std())
        resolved = max(torch.finfo(dtype).eps for dtype in (self._model.dtype, torch.float32))
        noise = max(noise, resolved * float(own.abs().max()))
        return Rescored(request, output_ids, readings[1][-1], noise if possible else 0.0)
