"""Where two answers differ, and whether rounding explains it."""

import math
from collections import abc
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import combinations

import torch
from transformers import PreTrainedModel

from copyspec_eval.decoding.engine import Engine
from copyspec_eval.decoding.given import read_again
from copyspec_eval.decoding.model_cache import ModelCache
from copyspec_eval.decoding.model_support import has_experts, working_dtype
from copyspec_eval.decoding.sequence import Sequence
from copyspec_eval.types import Difference, first_difference

NOISE_WINDOW = 64
"""Positions, in tokens, over which rounding is measured."""

MOST_ERROR = (8.0, 16.0, 64.0)
"""Bounds of the typical, the deciding and the largest error (see `Rescorer`), in eps of the dtype
times standard deviations of the logits. Measured in bfloat16 and float16: 3.3, 3.0 and 22 eps in a
trained model of 30 layers, less in small random ones without experts."""

_SINGLE = 16.0
"""The bounds are this many times larger in float32, where sums round as their results do. Measured:
18, 19 and 138 eps. Those of float64 are the same, since tokens are chosen by float32 logits."""

_QUANTIZED_EPS = 2.0**-5
"""The eps of a quantized model: a last bit can move an 8-bit activation by a whole step.
Measured with int8: typical errors of 0.1 and largest of 1 standard deviation."""

_CHANGES = 500
"""Random changes of all logits to try where a filter may hide how near a token is."""

_LIKE, _UNSEEN = 2.0, 0.25
"""The judged engine's error counts as rounding up to this many times that of the other readings
(measured: 1.8), or up to this share of the bounds."""


@dataclass(frozen=True, slots=True)
class Rescored:
    """Plain decoding's logits, `[vocabulary]`, float32, after `output_ids`, and their noise."""

    sequence: Sequence
    output_ids: abc.Sequence[int]
    logits: torch.Tensor
    noise: float

    def margin(self, *tokens: int) -> float | None:
        """By how much the logits would have to change for the model to choose each of `tokens`.

        `TokenChooser.margin` changes one logit. Where a third token decides, at the edge of a top-k
        or top-p, a change of all logits within the noise may be enough: the margin is then twice
        the noise.
        """
        prefix_ids = [*self.sequence.prompt_ids, *self.output_ids]
        chooser, largest = self.sequence.chooser, 0.0
        for token in tokens:
            chooser.restart(len(self.output_ids))
            least = chooser.margin(prefix_ids, self.logits, token)
            margin = math.inf if least is None else least
            if margin > 2 * self.noise > 0 and not chooser.is_argmax:
                margin = 2 * self.noise if token in self._reached(prefix_ids) else margin
            largest = max(largest, margin)
        return None if math.isinf(largest) else largest

    def _reached(self, prefix_ids: abc.Sequence[int]) -> Iterator[int]:
        """What random changes of all logits within the noise lead to."""
        source = torch.Generator().manual_seed(0)
        for _ in range(_CHANGES):
            change = (2 * torch.rand(len(self.logits), generator=source) - 1) * self.noise
            self.sequence.chooser.restart(len(self.output_ids))
            changed = self.logits + change.to(self.logits.device)
            yield self.sequence.chooser.choose(prefix_ids, changed)


class Rescorer:
    """Reads an answer again in ways that differ only in rounding, to measure the rounding.

    Three readings use no part of the judged engine: plain one-token steps, the model's own forward
    at once, and the model's own in chunks of the engine's width. How far any two are apart, over
    `NOISE_WINDOW` positions, is what rounding does to this model, dtype, device and context:

    * typical error: root mean square over the vocabulary, at the median position;
    * deciding error: of the gap between the two likeliest tokens, root mean square over positions;
    * largest error of any logit: the noise, and at least one ulp of the largest logit.

    The noise is 0, and excuses nothing,

    * if an error is beyond its bound in `MOST_ERROR`: then one of the forwards is wrong;
    * if the judged engine's widest steps are further from plain decoding than twice an error of the
      other readings, and than a quarter of its bound.

    Rounding can change a router's choice of experts, which moves the logits of single positions by
    any amount. So with experts only the typical error counts: plain decoding must be near one of
    the other readings, and the judged engine near one of all three. The noise is then at least the
    judged engine's largest error at the position itself.
    """

    def __init__(self, model: PreTrainedModel, baseline: Engine, engine: Engine) -> None:
        self._model = model
        self._baseline = baseline
        self._engine = engine

    def explain(
        self, sequence: Sequence, answer: abc.Sequence[int], baseline: abc.Sequence[int]
    ) -> Difference | None:
        """The first difference of two answers to `sequence`, with its margin; None if equal."""
        position = first_difference(answer, baseline)
        if position is None:
            return None
        if position >= min(len(answer), len(baseline)):
            # One ended where the other, with the same tokens and the same rule, did not.
            ended = [ids[position] if position < len(ids) else None for ids in (answer, baseline)]
            return Difference(position, ended[0], ended[1], margin=None, noise=0.0)
        rescored = self.rescore(sequence, baseline[:position], baseline[position:])
        tokens = answer[position], baseline[position]
        margin = rescored.margin(*tokens)
        return Difference(position, *tokens, margin, rescored.noise)

    @torch.inference_mode()
    def rescore(
        self,
        sequence: Sequence,
        output_ids: abc.Sequence[int],
        following_ids: abc.Sequence[int] = (),
    ) -> Rescored:
        """The logits that choose the token after `output_ids`, and their noise.

        With few tokens before it, rounding is also measured over `following_ids`.
        """
        length = len(output_ids)
        beyond = max(0, min(NOISE_WINDOW - 1, sequence.stop_rule.max_new_tokens) - length)
        read_ids = [*output_ids, *following_ids[:beyond]]
        keep = min(NOISE_WINDOW, 1 + len(read_ids))
        plain, judged = (
            read_again(engine, sequence, read_ids, keep)
            for engine in (self._baseline, self._engine)
        )
        stock = self._stock([*sequence.prompt_ids, *read_ids], keep)
        at = length - len(read_ids) - 1
        noise = self._noise(plain, judged, stock, at)
        return Rescored(sequence, output_ids, plain[at], noise)

    def _stock(self, token_ids: list[int], keep: int) -> list[torch.Tensor]:
        """Logits of the model's own forward, `[keep, vocabulary]`: at once, and in chunks."""
        at_once = ModelCache(self._model).read_without(token_ids, keep)
        if self._engine.cache != "copyspec":  # it reads in chunks itself
            return [at_once.float()]
        chunked = ModelCache(self._model, self._engine.batch_size)
        length, first, width = len(token_ids), len(token_ids) - keep + 1, self._engine.widest
        parts = [chunked.read(token_ids[:first], keep=1)]
        for end in range(first + width, length + width, width):
            chunk = token_ids[:end]
            parts.append(chunked.read(chunk, keep=len(chunk) - chunked.num_read))
        return [at_once.float(), torch.cat(parts).float()]

    def _noise(
        self, plain: torch.Tensor, judged: torch.Tensor, stock: abc.Sequence[torch.Tensor], at: int
    ) -> float:
        """The noise at index `at` of the readings, all `[positions, vocabulary]`, float32."""
        likeliest = plain.topk(2).indices
        errors = torch.stack(
            [_errors(a, b, likeliest) for a, b in combinations([plain, *stock], 2)]
        )
        of_judged = torch.stack(
            [_errors(judged, reading, likeliest) for reading in [plain, *stock]]
        )
        bounds = _bounds(self._model).to(errors) * plain.std()
        resolved = torch.finfo(working_dtype(self._model)).eps * float(plain.abs().max())
        noise = max(float(errors[:, -1].max()), resolved)
        if has_experts(self._model):
            is_rounding = _is_rounding_of_experts(errors[:, 0], of_judged[:, 0], bounds[0])
            noise = max(noise, float((judged[at] - plain[at]).abs().max()))
        else:
            most = errors.amax(0)
            is_rounding = (most <= bounds).all() & (of_judged[0] <= _as_large(most, bounds)).all()
        return noise if is_rounding else 0.0


def _as_large(errors: torch.Tensor, bounds: torch.Tensor) -> torch.Tensor:
    """What the judged engine's error can be where those of the other readings are `errors`."""
    return (_LIKE * errors).maximum(_UNSEEN * bounds)


def _is_rounding_of_experts(
    errors: torch.Tensor, of_judged: torch.Tensor, bound: torch.Tensor
) -> torch.Tensor:
    """`Rescorer`'s conditions with experts; the first two `errors` are plain decoding's."""
    is_near = errors <= bound
    nearest = torch.where(is_near, errors, 0.0).amax()
    return is_near[:2].any() & (of_judged.min() <= _as_large(nearest, bound))


def _errors(a: torch.Tensor, b: torch.Tensor, likeliest: torch.Tensor) -> torch.Tensor:
    """How far two readings `[positions, vocabulary]` are apart: typical, deciding, largest."""
    error = a - b
    typical = error.square().mean(-1).sqrt().median()
    first, second = error.gather(-1, likeliest).unbind(-1)
    return torch.stack([typical, (first - second).square().mean().sqrt(), error.abs().max()])


def _bounds(model: PreTrainedModel) -> torch.Tensor:
    """`MOST_ERROR` of `model`, in standard deviations of its logits."""
    eps = torch.finfo(working_dtype(model)).eps
    if getattr(model, "is_quantized", False):
        eps = max(eps, _QUANTIZED_EPS)
    elif eps == torch.finfo(torch.float32).eps:
        eps *= _SINGLE
    return eps * torch.tensor(MOST_ERROR)
