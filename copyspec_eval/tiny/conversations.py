"""The conversations that the embedded model learns from, drawn at random."""

from __future__ import annotations

import random
from collections.abc import Callable

from copyspec_eval.tiny import articles, programs, texts
from copyspec_eval.tiny.turns import Turn
from copyspec_eval.tiny.words import Draw

KINDS: dict[Callable[[Draw], tuple[object, list[Turn]]], int] = {
    texts.conversation: 6,
    programs.conversation: 2,
    articles.conversation: 2,
}
"""What draws a conversation, and how often."""


def training_conversation(rng: random.Random) -> list[Turn]:
    """One conversation without any of the names and numbers that are held out."""
    [draw_one] = rng.choices(list(KINDS), list(KINDS.values()))
    _, turns = draw_one(Draw(rng, held_out=False))
    return turns
