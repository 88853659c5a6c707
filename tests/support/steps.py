"""The exact steps of the models that tests make."""

from __future__ import annotations

from typing import Any

from tiny_models import VOCABULARY

from copyspec_eval.decoding import kernels
from copyspec_eval.decoding.exactness import fixed_steps, measure_exact_steps
from copyspec_eval.types import ExactSteps

TEXT = tuple((7 * index * index + 3 * index) % (VOCABULARY - 1) + 1 for index in range(211))
_WIDEST = 33

_measured: dict[tuple[int, int, bool], tuple[Any, ExactSteps]] = {}


def exact_steps(model: Any, batch_size: int = 1, num_draft_tokens: int = 10) -> ExactSteps:
    """Those of `model`, measured once per batch size; of a fixed width where none agree."""
    key = id(model), batch_size, kernels.is_available()
    if key not in _measured:
        text = [token % model.config.vocab_size for token in TEXT]
        steps = measure_exact_steps(model, text, _WIDEST, batch_size)
        _measured[key] = model, steps or fixed_steps(num_draft_tokens)  # ids of live models alone
    return _measured[key][1]
