"""The way of exact mode of the models that tests make."""

from typing import Any

import torch
from tiny_models import VOCABULARY

from copyspec_eval.decoding import kernels
from copyspec_eval.decoding.exactness import Mismatch, fixed_width, mismatches
from copyspec_eval.types import ExactMode

TEXT = tuple((7 * index * index + 3 * index) % (VOCABULARY - 1) + 1 for index in range(211))
_LONGEST = 32

_checked: dict[tuple[int, int, bool], tuple[Any, ExactMode]] = {}


def first_mismatch(*readings: Any) -> Mismatch | None:
    """The first of `mismatches`; None if exact mode holds."""
    return next(mismatches(*readings), None)


def exact_mode_of(model: Any, batch_size: int = 1, num_draft_tokens: int = 10) -> ExactMode:
    """That of `model`, checked once per batch size."""
    key = id(model), batch_size, kernels.is_available(torch.float32)
    if key not in _checked:
        text = [token % model.config.vocab_size for token in TEXT]
        mode = ExactMode()
        if not kernels.serve(model) or first_mismatch(model, text, mode, _LONGEST, batch_size):
            mode = ExactMode(fixed_width(num_draft_tokens))
            assert first_mismatch(model, text, mode, _LONGEST, batch_size) is None
        _checked[key] = model, mode  # ids of live models alone
    return _checked[key][1]
