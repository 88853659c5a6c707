"""Training of the embedded model: a small Llama on conversations generated on the fly."""

import random
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy
from transformers import AutoModelForCausalLM, LlamaConfig, PreTrainedTokenizerFast

from copyspec_eval.errors import DataError
from tiny.conversations import training_conversation
from tiny.tokenizer import encode

_IGNORED = -100
_MICRO_BATCHES = 2
_SAVE_SECONDS = 120


@dataclass(frozen=True)
class Settings:
    """How the model is trained.

    Attributes:
        steps: of the optimizers.
        seed: of the weights, the tokenizer and the conversations.
        conversations: per step.
        layers: of the model.
        learning_rate: peak; reached over `warm_up` steps, then decayed linearly to 0.
    """

    steps: int
    seed: int = 0
    conversations: int = 32
    layers: int = 4
    learning_rate: float = 3e-3
    warm_up: int = 100

    def rate(self, step: int) -> float:
        """The learning rate of `step`, counted from 0.

        >>> settings = Settings(steps=300, learning_rate=1.0)
        >>> settings.rate(49), settings.rate(100), settings.rate(200)
        (0.5, 1.0, 0.5)
        """
        warm_up = min(1.0, (step + 1) / self.warm_up)
        decay = max(0.0, (step - self.warm_up) / max(1, self.steps - self.warm_up))
        return self.learning_rate * warm_up * (1 - decay)


class Trainer:
    """A model in training, and its state.

    Attributes:
        model: in float32.
        commit: of the code that the training started with.
        losses: mean cross-entropy of the learned tokens, one per step so far.
        seconds: spent in steps so far.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerFast, settings: Settings, commit: str) -> None:
        self.tokenizer = tokenizer
        self.settings = settings
        self.commit = commit
        self.model = new_model(tokenizer, settings)
        self.losses: list[float] = []
        self.seconds = 0.0
        self._optimizers = _optimizers(self.model)

    def run(self, checkpoint: Path | None = None) -> Iterator[int]:
        """Train to the last step; yields the number of steps done after each.

        Args:
            checkpoint: resumed from if it exists, and written every two minutes and at the end.

        Raises:
            DataError: the checkpoint is of another seed or another number of layers.
        """
        if checkpoint and checkpoint.exists():
            self._load(checkpoint)
        saved = time.monotonic()
        for step in range(len(self.losses), self.settings.steps):
            started = time.monotonic()
            self.losses.append(self._step(step))
            self.seconds += time.monotonic() - started
            last = step + 1 == self.settings.steps
            if checkpoint and (last or time.monotonic() - saved > _SAVE_SECONDS):
                self._save(checkpoint)
                saved = time.monotonic()
            yield step + 1

    def _step(self, step: int) -> float:
        parts = list(batches(self.tokenizer, self.settings, step))
        learned = sum(int((labels != _IGNORED).sum()) for _, labels in parts)
        loss = sum(self._backward(tokens, labels, learned) for tokens, labels in parts)
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        for optimizer in self._optimizers:
            for group in optimizer.param_groups:
                group["lr"] = self.settings.rate(step)
            optimizer.step()
            optimizer.zero_grad()
        return loss

    def _backward(self, tokens: Tensor, labels: Tensor, learned: int) -> float:
        """Add the gradient of this part's share of the step's mean loss; the share."""
        device = self.model.device
        tokens, labels = tokens.to(device), labels.to(device)
        with torch.autocast(device.type, torch.bfloat16):
            hidden = self.model.model(tokens, use_cache=False).last_hidden_state
            wanted = labels != _IGNORED
            logits = self.model.lm_head(hidden[wanted])
        loss = cross_entropy(logits.float(), labels[wanted], reduction="sum") / learned
        loss.backward()  # type: ignore[no-untyped-call]
        return loss.item()

    def _save(self, path: Path) -> None:
        state = {
            "settings": asdict(self.settings),
            "commit": self.commit,
            "losses": self.losses,
            "seconds": self.seconds,
            "model": self.model.state_dict(),
            "optimizers": [optimizer.state_dict() for optimizer in self._optimizers],
        }
        partial = path.with_name(path.name + ".partial")
        torch.save(state, partial)
        partial.replace(path)

    def _load(self, path: Path) -> None:
        state: dict[str, Any] = torch.load(path, map_location=self.model.device)
        begun = Settings(**state["settings"])
        for name in ("seed", "layers"):
            before, now = getattr(begun, name), getattr(self.settings, name)
            if before != now:
                raise DataError(
                    f"{path}: begun with {name}={before}, not {now}; delete it, or give "
                    "another folder"
                )
        self.model.load_state_dict(state["model"])
        for optimizer, saved in zip(self._optimizers, state["optimizers"], strict=True):
            optimizer.load_state_dict(saved)
        self.commit, self.losses = state["commit"], state["losses"]
        self.seconds = state["seconds"]


def new_model(tokenizer: PreTrainedTokenizerFast, settings: Settings) -> Any:
    """Random weights of the embedded model's shape: with four layers 3.9 million in all."""
    torch.manual_seed(settings.seed)
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=256,
        intermediate_size=768,
        num_hidden_layers=settings.layers,
        num_attention_heads=4,
        max_position_embeddings=2048,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    auto: Any = AutoModelForCausalLM
    return auto.from_config(config, dtype=torch.float32)


def batches(
    tokenizer: PreTrainedTokenizerFast, settings: Settings, step: int
) -> Iterator[tuple[Tensor, Tensor]]:
    """Token ids and what follows each, (conversations, tokens), of one step in parts.

    Deterministic in seed and step. Conversations of similar length share a part, so that little of
    it is padding. Tokens that are not learned have the label that the loss ignores.
    """
    rng = random.Random(f"{settings.seed} {step}")
    drawn = [encode(tokenizer, training_conversation(rng)) for _ in range(settings.conversations)]
    drawn.sort(key=lambda conversation: len(conversation[0]))
    size = -(-len(drawn) // _MICRO_BATCHES)
    for start in range(0, len(drawn), size):
        yield _padded(drawn[start : start + size], int(tokenizer.pad_token_id))


def _padded(conversations: list[tuple[list[int], list[bool]]], pad: int) -> tuple[Tensor, Tensor]:
    longest = max(len(ids) for ids, _ in conversations) - 1
    tokens = torch.full((len(conversations), longest), pad)
    labels = torch.full((len(conversations), longest), _IGNORED)
    for row, (ids, learned) in enumerate(conversations):
        tokens[row, : len(ids) - 1] = torch.tensor(ids[:-1])
        following = torch.tensor(ids[1:])
        labels[row, : len(ids) - 1] = following.where(torch.tensor(learned[1:]), _IGNORED)
    return tokens, labels


def _optimizers(model: Any) -> list[torch.optim.Optimizer]:
    """Muon for the layers' matrices, AdamW for the embedding and the norms."""
    named = list(model.named_parameters())
    in_layers = {name for name, weight in named if weight.ndim == 2 and "embed" not in name}
    matrices = [weight for name, weight in named if name in in_layers]
    others = [weight for name, weight in named if name not in in_layers]
    return [
        torch.optim.Muon(matrices, weight_decay=0.01, adjust_lr_fn="match_rms_adamw"),
        torch.optim.AdamW(others, weight_decay=0.0, betas=(0.9, 0.95)),
    ]
