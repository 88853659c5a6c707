"""Steps of an engine that compute something else than the model does."""

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch

from copyspec_eval.decoding import row_runner
from copyspec_eval.decoding.forward import Part, forward
from copyspec_eval.decoding.repeated_steps import Steps

Change = Callable[[torch.Tensor], torch.Tensor]
"""What is added to logits `[…, vocabulary]`."""


def put_in_place(monkeypatch: pytest.MonkeyPatch, changed: Callable[..., Any]) -> None:
    """Have engines call this in place of `forward`, but for prompts."""

    def either(model: Any, cache: Any, parts: Sequence[Part], **options: Any) -> torch.Tensor:
        is_prompt = len(parts) == 1 and parts[0].start == 0
        logits: torch.Tensor = (forward if is_prompt else changed)(model, cache, parts, **options)
        return logits

    def read(steps: Steps, model: Any, parts: Sequence[Part], extent: Any = None) -> Any:
        return changed(model, steps.cache, parts, extent=extent), True

    monkeypatch.setattr(Steps, "read", read)
    monkeypatch.setattr(row_runner, "forward", either)


def change_wide_steps(monkeypatch: pytest.MonkeyPatch, change: Change) -> None:
    """Add to the logits of steps in which a row has more than one token, never of prompts."""

    def changed(model: Any, cache: Any, parts: Sequence[Part], **options: Any) -> torch.Tensor:
        logits = forward(model, cache, parts, **options)
        return logits + change(logits) if any(len(part.token_ids) > 1 for part in parts) else logits

    put_in_place(monkeypatch, changed)
