"""The conversations that the embedded model learns from, drawn at random."""

import random
from collections.abc import Callable

from tiny import articles, programs, texts
from tiny.turns import Turn
from tiny.words import Draw

KINDS: dict[Callable[[Draw], tuple[object, list[Turn]]], int] = {
    texts.conversation: 6,
    programs.conversation: 2,
    articles.conversation: 2,
}
"""Generators of conversations, and their weights."""


def training_conversation(rng: random.Random) -> list[Turn]:
    """One conversation without held-out names and numbers."""
    [draw_one] = rng.choices(list(KINDS), list(KINDS.values()))
    _, turns = draw_one(Draw(rng, held_out=False))
    return turns
