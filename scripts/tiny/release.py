"""Saves a trained model for transformers, with its losses and its manifest."""

import json
import platform
import subprocess
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from statistics import fmean
from typing import Any

import torch
import transformers
from transformers import GenerationConfig

from tiny.training import Trainer

_AVERAGED_STEPS = 50


def current_commit() -> str:
    """Commit of the repository of this file; `unknown` outside one."""
    command = ["git", "describe", "--always", "--dirty", "--abbrev=40"]
    result = subprocess.run(command, cwd=Path(__file__).parent, capture_output=True, text=True)
    return result.stdout.strip() or "unknown"


def save(trainer: Trainer, folder: Path, command: Sequence[str]) -> dict[str, Any]:
    """Write model, tokenizer, `losses.json` and `manifest.json`; returns steps and losses.

    The weights are stored in bfloat16, which halves the file; the config sets float32, in which
    CPUs are faster.
    """
    model = trainer.model.to("cpu", torch.bfloat16)
    model.generation_config = GenerationConfig(  # type: ignore[no-untyped-call]
        eos_token_id=trainer.tokenizer.eos_token_id, pad_token_id=trainer.tokenizer.pad_token_id
    )
    model.save_pretrained(folder)
    config = json.loads((folder / "config.json").read_text())
    _write(folder / "config.json", config | {"dtype": "float32"})
    trainer.tokenizer.save_pretrained(folder)
    losses = [
        round(fmean(trainer.losses[start : start + _AVERAGED_STEPS]), 5)
        for start in range(0, len(trainer.losses), _AVERAGED_STEPS)
    ]
    _write(folder / "losses.json", {"steps_per_value": _AVERAGED_STEPS, "losses": losses})
    summary = {"steps": len(trainer.losses), "first_loss": losses[0], "final_loss": losses[-1]}
    _write(
        folder / "manifest.json",
        summary
        | {
            "commit": trainer.commit,
            "command": " ".join(["scripts/train_tiny", *command[1:]]),
            "settings": asdict(trainer.settings),
            "parameters": sum(weight.numel() for weight in model.parameters()),
            "hours": round(trainer.seconds / 3600, 2),
            "threads": torch.get_num_threads(),
            "versions": {
                "python": platform.python_version(),
                "torch": torch.__version__,
                "transformers": transformers.__version__,
            },
        },
    )
    return summary


def _write(path: Path, value: object) -> None:
    path.write_text(json.dumps(value, indent=2) + "\n")
