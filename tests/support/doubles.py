"""Drafters that know the answer or are always wrong, a recording chooser, a broken `verify`."""

import random
from collections.abc import Callable, Mapping, Sequence
from itertools import chain, repeat

import torch
from fuzzing import doubles
from transformers import LogitsProcessorList

from copyspec_eval.decoding.choosing import TokenChooser
from copyspec_eval.decoding.sequence import verify
from copyspec_eval.types import Draft, Verdict


class OracleDrafter:
    """Knows the model's answer to each prompt: always right, past EOS and stop strings too."""

    def __init__(self, answers: Mapping[tuple[int, ...], Sequence[int]], vocabulary: int) -> None:
        self.answers, self.vocabulary = answers, vocabulary
        self.answer: Sequence[int] = ()

    def start(self, prompt_ids: Sequence[int], earlier: Sequence[Sequence[int]] = ()) -> None:
        self.answer = self.answers[tuple(prompt_ids)]

    def observe(self, token_ids: Sequence[int], verdict: Verdict) -> None:
        self.answer = self.answer[len(token_ids) :]

    def finish(self) -> None:
        """Nothing to keep."""

    def propose(self, budget: int, longest: int, threshold: float) -> Draft:
        return Draft(tuple(self.answer[:budget]), position=0)


class AdversarialDrafter(OracleDrafter):
    """Always wrong, at the first token."""

    def propose(self, budget: int, longest: int, threshold: float) -> Draft:
        return Draft(tuple((id + 1) % self.vocabulary for id in self.answer[:budget]))


class RandomDrafter(OracleDrafter):
    """Right for a random stretch, then wrong; of random length; sometimes empty."""

    kind = "partly right"

    def start(self, prompt_ids: Sequence[int], earlier: Sequence[Sequence[int]] = ()) -> None:
        super().start(prompt_ids)
        source = random.Random(str(prompt_ids))
        drafter = doubles.ScriptedDrafter(self.kind, self.answer, self.vocabulary, source)
        vars(self).update(observe=drafter.observe, propose=drafter.propose)


class RandomTreeDrafter(RandomDrafter):
    kind = doubles.TREE


class RecordingChooser(TokenChooser):
    """Greedy; keeps the logits of every choice, by prefix length."""

    def __init__(self) -> None:
        self.logits: dict[int, torch.Tensor] = {}
        super().__init__(LogitsProcessorList([self._keep]), do_sample=False)

    def _keep(self, prefix_ids: torch.Tensor, logits: torch.Tensor) -> torch.Tensor:
        self.logits[prefix_ids.shape[1]] = logits[0].clone()
        return logits


def verdict_on(draft: Draft, answer: Sequence[int]) -> Verdict:
    """What verifying finds if the model gives `answer`, and -1 after it."""
    continuation = chain(answer, repeat(-1))
    return verify(draft, lambda _: next(continuation))


def one_wrong_in(every: int) -> Callable[..., Verdict]:
    """A `verify` that accepts one wrong draft token in `every`, but not in the trial at load."""
    wrong = 0

    def broken(draft: Draft, choose: Callable[[int], int]) -> Verdict:
        nonlocal wrong
        verdict = verify(draft, choose)
        if draft.source != "model" and verdict.num_accepted < len(draft.token_ids):
            wrong += 1
            if wrong % every == 0:
                return Verdict(verdict.num_accepted + 1, choose(verdict.num_accepted + 1))
        return verdict

    return broken
