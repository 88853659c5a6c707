"""One exchange of a conversation."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Turn:
    """A user's message, and the right answer.

    Attributes:
        learned: whether training learns the answer; False for a mistake that a later turn finds.
    """

    user: str
    answer: str
    learned: bool = True
