"""Sequences whose answer is given: with them the engine itself is checked and measured."""

from collections import abc, deque
from collections.abc import Callable, Iterable, Mapping

import torch
from transformers import LogitsProcessorList

from copyspec_eval.decoding.choosing import TokenChooser
from copyspec_eval.decoding.engine import Engine
from copyspec_eval.decoding.sequence import Sequence
from copyspec_eval.decoding.stopping import StopRule
from copyspec_eval.types import Draft

_NO_TOKEN = -1


class Given(Sequence):
    """A sequence that gets a given answer's tokens, whatever their logits, and records the logits.

    Args:
        drafts: by their place in the answer; at 0 is the prefill's, where that may have one.
        num_logits: how many of the last `logits`, `[vocabulary]` each, to record; None for all.
    """

    def __init__(
        self,
        prompt_ids: Iterable[int],
        answer_ids: abc.Sequence[int],
        drafts: Mapping[int, Draft],
        max_new_tokens: int | None = None,
        num_logits: int | None = None,
    ) -> None:
        length = len(answer_ids)
        greedy = TokenChooser(LogitsProcessorList(), do_sample=False)
        super().__init__(prompt_ids, StopRule(max_new_tokens or length, length=length), greedy)
        self._answer_ids, self._drafts = answer_ids, drafts
        self.logits: deque[torch.Tensor] = deque(maxlen=num_logits)

    def propose(self, longest: int, threshold: float) -> Draft:
        return self._drafts.get(len(self.output_ids), Draft()).cut(min(longest, self.budget))

    def choices(
        self, draft: Draft, argmax: abc.Sequence[int], logits: torch.Tensor
    ) -> Callable[[int], int]:
        following = iter(self._answer_ids[len(self.output_ids) :])

        def choose(index: int) -> int:
            token = next(following, _NO_TOKEN)
            if token != _NO_TOKEN:
                self.logits.append(logits[index].clone())
            return token

        return choose


def read_again(
    engine: Engine, sequence: Sequence, output_ids: abc.Sequence[int], num_logits: int
) -> torch.Tensor:
    """The logits of an engine's widest steps, with `output_ids` as a sequence's output so far.

    In exact mode they are bit for bit those of a `generate` that gave this output. The prefix cache
    is not used. Returns the last ones, `[at most num_logits, vocabulary]`, float32.
    """
    num_draft_tokens = engine.widest - 1
    drafts = scripted_drafts(output_ids, [(num_draft_tokens, 0)] * len(output_ids), start=1)
    budget = sequence.stop_rule.max_new_tokens
    rows = [
        Given(sequence.prompt_ids, [*output_ids, 0], drafts, budget, num_logits)
        for _ in range(engine.batch_size)
    ]
    engine.without_drafter(num_draft_tokens).generate(rows)
    return torch.stack([*rows[0].logits]).float()


def scripted_drafts(
    answer_ids: abc.Sequence[int],
    steps: Iterable[tuple[int, int]],
    wrong_ids: abc.Sequence[int] = (),
    start: int = 0,
) -> dict[int, Draft]:
    """Drafts for `Given`: for each step from `start` on, its right tokens, then its wrong ones.

    >>> drafts = scripted_drafts([5, 6, 7, 8], [(1, 2), (0, 1)], wrong_ids=[1, 2, 3, 4])
    >>> {place: draft.token_ids for place, draft in drafts.items()}
    {0: (5, 2, 3), 2: (3,)}
    """
    drafts = {}
    for num_right, num_wrong in steps:
        middle = start + num_right
        token_ids = (*answer_ids[start:middle], *wrong_ids[middle : middle + num_wrong])
        # A source that needs no place in the context.
        drafts[start] = Draft(token_ids, source="model")
        start = middle + 1
    return drafts
