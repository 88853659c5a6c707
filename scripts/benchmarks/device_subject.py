"""A device, and the models that are run there."""

import gc
import random
from dataclasses import dataclass, field
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from benchmarks.device_drafts import Prompt
from benchmarks.models import MEDIUM, QWEN_05B, QWEN_7B, SMALL, Shape, random_model
from copyspec_eval.decoding.exactness import exact_mode, text_tokens
from copyspec_eval.errors import ModelError
from copyspec_eval.types import ExactMode

LONGEST = 15
"""The longest draft, in tokens."""


@dataclass(frozen=True)
class Sizes:
    """How much to do. A model is timed in the first of `timed` whose bytes are free."""

    shape: Shape
    prompt_lengths: tuple[int, ...]  # more than a batch, so that rows are refilled
    budget: int
    timed: tuple[tuple[int, Shape], ...]
    rounds: int
    copied_bytes: int


_LENGTHS = (5, 33, 700, 120, 300, 64, 21, 12, 90)
SIZES = {
    "cuda": Sizes(
        MEDIUM, _LENGTHS, 40, ((24 << 30, QWEN_7B), (0, QWEN_05B)), rounds=20, copied_bytes=1 << 30
    ),
    "cpu": Sizes(
        *(SMALL, (5, 33, 18, 12, 27, 40, 64, 9, 21), 10),
        ((0, SMALL | {"tie_word_embeddings": True, "max_position_embeddings": 2048}),),
        rounds=3,
        copied_bytes=1 << 28,
    ),
}


@dataclass
class Subject:
    """A device and the models that are run there: random ones of two shapes, or a named one."""

    device: str
    sizes: Sizes
    name: str | None = None
    _latest: tuple[Any, Any] = (None, None)
    _modes: dict[Any, ExactMode | str] = field(default_factory=dict)

    def model(self, dtype: torch.dtype, is_timed: bool = False) -> Any:
        """One at a time is in memory."""
        key = dtype, is_timed and self.name is None
        if self._latest[0] != key:
            self._latest = None, None
            gc.collect()
            self._latest = key, self._load(*key)
        return self._latest[1]

    def _load(self, dtype: torch.dtype, is_timed: bool) -> Any:
        if self.name is None:
            shape = self.sizes.shape
            if is_timed:
                timed = self.sizes.timed
                shape = next(each for size, each in timed if not size or size < _free_bytes())
            return random_model(shape, dtype, self.device)
        auto: Any = AutoModelForCausalLM
        return auto.from_pretrained(self.name, dtype=dtype).eval().to(self.device)

    def tokenizer(self) -> Any:
        """Of random models: a text that is as random."""
        if self.name is not None:
            auto: Any = AutoTokenizer
            return auto.from_pretrained(self.name)
        source, vocabulary = random.Random(0), self.sizes.shape["vocab_size"]
        token_ids = [source.randrange(vocabulary) for _ in range(1000)]
        return lambda text, **options: {"input_ids": token_ids}

    def prompts(self) -> list[Prompt]:
        """Each repeats its first half."""
        token_ids = text_tokens(self.tokenizer())
        lengths = self.sizes.prompt_lengths
        starts = [sum(lengths[:index]) % (len(token_ids) // 2) for index in range(len(lengths))]
        halves = [token_ids[at : at + (n + 1) // 2] for at, n in zip(starts, lengths, strict=True)]
        return [tuple((half + half)[:n]) for half, n in zip(halves, lengths, strict=True)]

    def mode(self, dtype: torch.dtype, batch_size: int, is_timed: bool = False) -> ExactMode | str:
        """The exact mode, checked once, or why it is refused."""
        key = dtype, batch_size, is_timed
        if key not in self._modes:
            model = self.model(dtype, is_timed)
            rows = {"longest": LONGEST, "needed": 0, "batch_size": batch_size}
            try:
                self._modes[key] = exact_mode(model, self.tokenizer(), **rows)
            except ModelError as error:
                self._modes[key] = str(error)
        return self._modes[key]

    def exact(
        self, dtype: torch.dtype, batch_size: int, is_timed: bool = False
    ) -> ExactMode | None:
        mode = self.mode(dtype, batch_size, is_timed)
        return mode if isinstance(mode, ExactMode) else None


def _free_bytes() -> int:
    return int(torch.cuda.mem_get_info()[0])
