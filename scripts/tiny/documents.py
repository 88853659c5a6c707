"""The documents of the quickstart's tasks: conversations of names and numbers never trained on."""

import random
from collections.abc import Callable, Iterator
from typing import Any

from tiny import articles, programs, texts
from tiny.turns import Turn
from tiny.words import Draw

Document = dict[str, Any]

NUM_PER_CHANGE = 8
NUM_DOCUMENTS = 40


def redundant(draw: Draw) -> Iterator[Document]:
    """Two turns, a text and a change; the same number for each kind of change."""
    for _ in range(NUM_PER_CHANGE):
        for change in texts.CHANGES:
            yield _document(texts.changed_text(draw, change), category=change)


def self_correction(draw: Draw) -> Iterator[Document]:
    """Three turns; `answer` ends in the number that the program must print, as in GSM8K."""
    for _ in range(NUM_DOCUMENTS):
        solution, turns = programs.conversation(draw, mistakes=False)
        yield _document(turns, answer=f"#### {solution}")


def extractive(draw: Draw) -> Iterator[Document]:
    """One turn, and the article by itself."""
    for _ in range(NUM_DOCUMENTS):
        article, turns = articles.conversation(draw)
        yield _document(turns, article=article)


DOCUMENTS: dict[str, Callable[[Draw], Iterator[Document]]] = {
    "redundant": redundant,
    "self_correction": self_correction,
    "extractive": extractive,
}
"""By file name, which also ends the task's name."""


def documents(name: str, seed: int = 0) -> list[Document]:
    """All documents of a task, the same for the same seed."""
    return list(DOCUMENTS[name](Draw(random.Random(f"{name} {seed}"), held_out=True)))


def _document(turns: list[Turn], **more: str) -> Document:
    return {
        "turns": [turn.user for turn in turns],
        "answers": [turn.answer for turn in turns],
        **more,
    }
