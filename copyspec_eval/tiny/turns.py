"""One exchange of a conversation."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Turn:
    """What the user says, and the right answer.

    Attributes:
        learned: whether training learns the answer; not if it is a mistake to be found later.
    """

    user: str
    answer: str
    learned: bool = True
