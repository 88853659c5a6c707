"""A trial at load: the engine's forwards, as decoding uses them, against the model's own.

It catches what no list of model types can: a feature of the mask, the cache, the experts or the
numbers that the engine does not know.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from transformers import PreTrainedModel

from copyspec_eval.decoding.cache import RowCache
from copyspec_eval.decoding.forward import forward
from copyspec_eval.decoding.model_copy import model_configs
from copyspec_eval.decoding.model_support import (
    REMEDY,
    check_uncompiled,
    has_experts,
    input_device,
)
from copyspec_eval.decoding.modules import engine_kernels
from copyspec_eval.errors import ModelError

_WIDTHS = (1, 2, 5, 16)
_CHUNK, _CONTEXT, _UNWRITTEN = 9, 16, 32
"""In tokens: the prompt's first chunk, the prompt, and what the cache holds beyond the text."""

_TREE_TOKENS = 5

_WINDOW_NAMES = ("sliding_window", "attention_chunk_size")
_WINDOW = 5

_HIGHEST_ID = 1000
"""Multimodal models have the ids of their images far up."""

MOST_ROUNDING = {torch.float32: 1e-3, torch.float16: 0.05, torch.bfloat16: 0.25}
"""By dtype, bound of what rounding can do to a position's logits: root mean square over the
vocabulary, in standard deviations of the logits.

Measured at most: 1.3e-4, 0.013 and 0.087, over tiny random models of a hundred architectures with
widely spread weights, random ones of 24 layers, and a trained one of 30. One that iterates its
layers is chaotic with random weights, and beyond the bounds in half precision. With experts it is
0.023 and 0.053 in half precision for the median position, and up to 1 for single ones.
"""


@torch.inference_mode()
def probe(
    model: PreTrainedModel,
    *,
    exact: bool,
    widths: Sequence[int] = _WIDTHS,
    batch_size: int = 1,
) -> None:
    """Check on a short text that the engine's forward computes what the model's own does.

    Two chunks of a prompt, steps of all `widths` with right and with wrong drafts, and (not in
    exact mode, which has none) a tree are compared with one forward of the model as it was loaded.
    Windows of the attention are shortened for that time, so that they matter. A position's logits
    may differ by `MOST_ROUNDING`. Of a model with routed experts in half precision, this holds for
    the median position of prefills, of steps and of the tree: there rounding can change the choice
    of experts, and that moves a position's logits by any amount.

    A step's logits must depend neither on the tokens after them nor on the other rows: whatever
    stands there, they are the same bits. Two kinds of models are held to the bound above instead:
    with stock experts (not `exact`), and where a forward does not repeat its own bits.

    It takes `4 + 2 * len(widths)` forwards of a few tokens, and one more for a batch.

    Args:
        model: the model, loaded.
        exact: whether it will be decoded in exact mode.
        widths: of the steps, in tokens.
        batch_size: rows of the steps.

    Raises:
        ModelError: the model is compiled, the logits differ, or the engine's forward fails.
    """
    check_uncompiled(model)
    trial = _Trial(model, exact, widths, batch_size)
    with short_windows(model):
        own = _own_logits(model, trial.ids([trial.text]))
        try:
            with engine_kernels(model, exact):
                readings = list(trial.readings())
            for kind in ("a prefill", "a step", "a tree"):
                compare(model, [of for of in readings if of.kind == kind], own)
        except ModelError:
            raise
        except Exception as error:
            raise ModelError(
                f"model type {model.config.model_type!r} fails in the engine's forward "
                f"({_one_line(error)}); {REMEDY}"
            ) from error


def _own_logits(model: PreTrainedModel, ids: torch.Tensor) -> torch.Tensor:
    """Of a text `[1, tokens]`, by the model as it was loaded: `[tokens, vocabulary]`, float32."""
    try:
        logits: torch.Tensor = model(input_ids=ids, use_cache=False).logits[0].float()
    except Exception as error:
        raise ModelError(
            f"model type {model.config.model_type!r} fails in its own forward "
            f"({_one_line(error)}); check how it was made, and what you pass with it"
        ) from error
    return logits


def _one_line(error: Exception) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())}"[:150]


@dataclass(frozen=True, slots=True)
class Reading:
    """Logits `[n, vocabulary]` of a forward, and after which positions of the text they are."""

    kind: str
    logits: torch.Tensor
    positions: Sequence[int]


def compare(
    model: PreTrainedModel,
    readings: Sequence[Reading],
    own: torch.Tensor,
    through: str = "the engine's cache",
) -> None:
    """Compare readings of one kind with the model's own forward, as `probe` says.

    Args:
        model: the model.
        readings: of the engine's forwards, of one kind.
        own: `[text, vocabulary]`, float32, of the model's own.
        through: what the readings went through, for people.

    Raises:
        ModelError: they differ by more than rounding.
    """
    if not readings:
        return
    ours = torch.cat([reading.logits.float() for reading in readings])
    positions = [position for reading in readings for position in reading.positions]
    scale = own.std() + torch.finfo(torch.float32).tiny
    errors = (ours - own[positions]).square().mean(-1).sqrt() / scale
    dtype = _coarsest_dtype(model)
    flips = dtype != torch.float32 and has_experts(model)
    error, bound = errors.median() if flips else errors.max(), MOST_ROUNDING[dtype]
    if not error <= bound:
        raise ModelError(
            f"model type {model.config.model_type!r} gives other logits through {through} "
            f"(in {readings[0].kind} off by {float(error):.1g} standard deviations, where "
            f"{str(dtype)[6:]} explains {bound:g}); {REMEDY}"
        )


class _Trial:
    """The engine's forwards on a text in row 0, beside another text in the other rows."""

    def __init__(
        self, model: PreTrainedModel, exact: bool, widths: Sequence[int], batch_size: int
    ) -> None:
        self._model = model
        self._exact = exact
        self._widths = sorted(set(widths), reverse=True)
        self._batch_size = batch_size
        self._same_bits = exact or not has_experts(model)
        source = random.Random(0)
        highest = min(int(model.config.get_text_config().vocab_size), _HIGHEST_ID) - 1
        length = _CONTEXT + max(_TREE_TOKENS, *widths)
        self._cache = RowCache(batch_size, length + _UNWRITTEN)
        self.text, self._other, self._junk = (
            [source.randint(0, highest) for _ in range(length)] for _ in range(3)
        )

    def ids(self, rows: Sequence[Sequence[int]]) -> torch.Tensor:
        return torch.tensor(rows, device=input_device(self._model))

    def readings(self) -> Iterator[Reading]:
        # The second chunk keeps as many logits as a draft behind the prompt needs.
        for start, end, keep in ((0, _CHUNK, 1), (_CHUNK, _CONTEXT, 3)):
            logits = self._prefill(0, self.text[start:end], start, keep)
            yield Reading("a prefill", logits, range(end - keep, end))
        if self._batch_size > 1:
            self._prefill(1, self._other[:_CONTEXT], 0, 1)
            for row in range(2, self._batch_size):
                self._cache.copy_row(1, row)
        # The widest first: what it leaves behind in the cache must not matter to the others.
        for width in self._widths:
            yield from self._step(width)
        if not self._exact:
            yield self._tree()

    def _prefill(self, row: int, tokens: Sequence[int], start: int, keep: int) -> torch.Tensor:
        end = start + len(tokens)
        ids = self.ids([tokens])
        return forward(self._model, self._cache, row, ids, start, end, logits_to_keep=keep)[0]

    def _step(self, width: int) -> Iterator[Reading]:
        """The right draft; then one that is wrong from its middle on, beside other rows."""
        right = self.text[_CONTEXT : _CONTEXT + width]
        logits = self._feed(right, self._other[_CONTEXT : _CONTEXT + width])
        yield Reading("a step", logits, range(_CONTEXT, _CONTEXT + width))
        half = (width + 1) // 2
        wrong = right[:half] + self._junk[half:width]
        if wrong == right and self._batch_size == 1:
            return
        disturbed = self._feed(wrong, self._junk[:width])
        yield Reading("a step", disturbed[:half], range(_CONTEXT, _CONTEXT + half))
        if not self._same_bits or torch.equal(logits[:half], disturbed[:half]):
            return
        if torch.equal(disturbed, self._feed(wrong, self._junk[:width])):
            raise ModelError(
                f"model type {self._model.config.model_type!r} computes a token's logits from what "
                f"else is in the step (of {width} tokens), as with a scale per tensor; {REMEDY}"
            )

    def _tree(self) -> Reading:
        """Three right tokens, with two wrong ones on a branch between them."""
        right, junk = self.text[_CONTEXT:], self._junk
        tokens = [right[0], junk[0], right[1], junk[1], right[2]]
        chain = list(range(-1, len(tokens) - 1))
        parents = [[-1, 0, 0, 1, 2], *[chain] * (self._batch_size - 1)]
        logits = self._feed(tokens, self._other[_CONTEXT : _CONTEXT + len(tokens)], parents)
        return Reading("a tree", logits[[0, 2, 4]], range(_CONTEXT, _CONTEXT + 3))

    def _feed(
        self,
        tokens: list[int],
        others: list[int],
        parents: Sequence[Sequence[int]] | None = None,
    ) -> torch.Tensor:
        """A step behind the context; the other rows are one token behind.

        Returns:
            logits of row 0, `[width, vocabulary]`.
        """
        more = self._batch_size - 1
        rows = self.ids([tokens, *[others] * more])
        starts = self.ids([[_CONTEXT], *[[_CONTEXT - 1]] * more])
        extent = self._cache.capacity
        return forward(self._model, self._cache, 0, rows, starts, extent, parents=parents)[0]


@contextmanager
def short_windows(model: PreTrainedModel) -> Iterator[None]:
    """Shorten the model's attention windows, wherever they are kept, to a few tokens."""
    found = [
        (holder, name, vars(holder)[name])
        for holder in (*model.modules(), *model_configs(model))
        for name in _WINDOW_NAMES
        if type(vars(holder).get(name)) is int and vars(holder)[name] > _WINDOW
    ]
    try:
        for holder, name, _ in found:
            setattr(holder, name, _WINDOW)
        yield
    finally:
        for holder, name, window in found:
            setattr(holder, name, window)


def _coarsest_dtype(model: PreTrainedModel) -> torch.dtype:
    """Of those that the model computes in, of `MOST_ROUNDING`."""
    device = input_device(model).type
    # "high" is TF32, which resolves as much as float16.
    of_products = {"highest": torch.float32, "high": torch.float16, "medium": torch.bfloat16}
    dtypes = [model.dtype, of_products[torch.get_float32_matmul_precision()]]
    if torch.is_autocast_enabled(device):
        dtypes.append(torch.get_autocast_dtype(device))
    if getattr(model, "is_quantized", False):
        # A last bit can turn a whole step of what is cut to 8 bits.
        dtypes.append(torch.bfloat16)
    coarsest = max(torch.finfo(dtype).eps for dtype in dtypes)
    return next(
        (dtype for dtype in MOST_ROUNDING if torch.finfo(dtype).eps >= coarsest), torch.bfloat16
    )
