"""Steps of an engine that compute something else than the model does."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from copyspec_eval.decoding import row_runner
from copyspec_eval.decoding.forward import forward, forward_packed

Change = Callable[[torch.Tensor], torch.Tensor]
"""What is added to logits `[…, vocabulary]`."""


def put_in_place(
    monkeypatch: pytest.MonkeyPatch, changed: Callable[..., Any], packed: Callable[..., Any]
) -> None:
    """Have engines call these in place of `forward` and `forward_packed`, but for prompts."""
    monkeypatch.setattr(row_runner, "forward", changed)
    monkeypatch.setattr(row_runner, "forward_packed", packed)


def change_wide_steps(monkeypatch: pytest.MonkeyPatch, change: Change) -> None:
    """Add to the logits of steps of more than one token, never of prompts."""

    def changed(
        model: Any, cache: Any, first_row: int, ids: Any, start: Any, *args: Any, **more: Any
    ) -> torch.Tensor:
        logits = forward(model, cache, first_row, ids, start, *args, **more)
        return logits if ids.shape[1] == 1 else logits + change(logits)

    def packed(*args: Any) -> torch.Tensor:
        logits = forward_packed(*args)
        return logits + change(logits)

    put_in_place(monkeypatch, changed, packed)
