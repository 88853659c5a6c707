"""Where two answers differ, and whether rounding explains it."""

from __future__ import annotations

from collections import abc
from dataclasses import dataclass
from itertools import combinations

import torch
from transformers import PreTrainedModel

from copyspec_eval.decoding.engine import Engine
from copyspec_eval.decoding.sequence import Sequence
from copyspec_eval.decoding.serving import MOST_ROUNDING, has_experts
from copyspec_eval.types import Difference, first_difference

NOISE_WINDOW = 64
"""Last positions, in tokens, over which rounding is measured."""


@dataclass(frozen=True, slots=True)
class Rescored:
    """A model's logits after some tokens of an answer, and how exact they are.

    Attributes:
        sequence: what is answered; its own output does not matter.
        output_ids: the answer's tokens so far.
        logits: `[vocabulary]`, float32, of plain one-token decoding.
        noise: see `Rescorer`.
    """

    sequence: Sequence
    output_ids: abc.Sequence[int]
    logits: torch.Tensor
    noise: float

    def margin(self, *tokens: int) -> float | None:
        """By how much the logits would have to change for the model to choose any of `tokens`.

        The largest of their `TokenChooser.margin`; None if one has none.
        """
        prefix_ids = [*self.sequence.prompt_ids, *self.output_ids]
        chooser = self.sequence.chooser
        largest = 0.0
        for token in tokens:
            chooser.restart(len(self.output_ids))
            margin = chooser.margin(prefix_ids, self.logits, token)
            if margin is None:
                return None
            largest = max(largest, margin)
        return largest


class Rescorer:
    """Reads an answer again in ways that are equal but for rounding, to measure the rounding.

    The ways: by the model's own forward, at once; in one-token steps; in the steps of the engine
    whose answers are compared. The noise is the largest difference of any logit between any two of
    them, over the last `NOISE_WINDOW` positions and the whole vocabulary, and at least what the
    dtype resolves: one unit in the last place of the largest logit. So it is measured for this
    model, dtype, device and context, and no constant.

    A noise beyond what rounding can do to a model without experts means that a forward is wrong. It
    is reported as 0 then, and excuses nothing. (Rounding can change a router's choice of experts,
    and that moves logits by any amount.)

    Args:
        model: the model that gave the answers.
        baseline: an engine of that model that decodes one token a step.
        engine: the engine whose answers are compared.
    """

    def __init__(self, model: PreTrainedModel, baseline: Engine, engine: Engine) -> None:
        self._model = model
        self._engines = (baseline, engine)

    def explain(
        self, sequence: Sequence, answer: abc.Sequence[int], baseline: abc.Sequence[int]
    ) -> Difference | None:
        """The first difference of two answers to one prompt with its margin; None if equal.

        Args:
            sequence: what was answered; its chooser is used.
            answer: the tokens to compare.
            baseline: those of plain one-token decoding.
        """
        position = first_difference(answer, baseline)
        if position is None:
            return None
        if position >= min(len(answer), len(baseline)):
            # One ended where the other, with the same tokens and the same rule, did not.
            ended = [ids[position] if position < len(ids) else None for ids in (answer, baseline)]
            return Difference(position, ended[0], ended[1], margin=None, noise=0.0)
        rescored = self.rescore(sequence, baseline[:position])
        tokens = answer[position], baseline[position]
        margin = rescored.margin(*tokens)
        return Difference(position, *tokens, margin, rescored.noise)

    @torch.inference_mode()
    def rescore(self, sequence: Sequence, output_ids: abc.Sequence[int]) -> Rescored:
        """The logits that choose the token after `output_ids`, and their noise."""
        ids = torch.tensor([[*sequence.prompt_ids, *output_ids]], device=self._model.device)
        keep = min(NOISE_WINDOW, 1 + len(output_ids))
        logits = self._model(input_ids=ids, use_cache=False, logits_to_keep=keep).logits[0].float()
        readings = [logits, *(engine.read(sequence, output_ids, keep) for engine in self._engines)]
        noise = max(float((a - b).abs().max()) for a, b in combinations(readings, 2))
        possible = has_experts(self._model) or noise <= MOST_ROUNDING * float(logits.std())
        resolved = max(torch.finfo(dtype).eps for dtype in (self._model.dtype, torch.float32))
        noise = max(noise, resolved * float(logits.abs().max()))
        return Rescored(sequence, output_ids, readings[1][-1], noise if possible else 0.0)
