"""Whether drafts change a bit of what an engine answers on a device.

A model answers prompts with `drafter=none`, and again with drafts that are right, wrong, partly
right and junk, and with each drafter of the registry. Every verified logit has to be the same bits.
"""

import random
from collections import abc
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from transformers import LogitsProcessorList

from copyspec_eval.decoding.choosing import TokenChooser
from copyspec_eval.decoding.engine import Engine
from copyspec_eval.decoding.sequence import Sequence
from copyspec_eval.decoding.stopping import StopRule
from copyspec_eval.drafters.registry import DrafterFactory, drafter_factory
from copyspec_eval.pairs.paired import PairedAnswer, PairedEngine
from copyspec_eval.types import Draft, DraftOptions, ExactMode, Generation, Verdict

SCRIPTED = ("right", "wrong", "partly_right", "junk")
PAIRED = ("copyspec", "suffix")

Prompt = tuple[int, ...]
Logits = list[list[torch.Tensor]]
"""`[vocabulary]` by sequence and output token."""
Result = dict[str, Any]
"""A row of the JSON file."""


class _RecordingChooser(TokenChooser):
    """Greedy; keeps the logits of every output token, on their device."""

    is_argmax = False  # else the engine takes the argmax without asking

    def __init__(self) -> None:
        super().__init__(LogitsProcessorList(), do_sample=False)
        self.logits: list[torch.Tensor] = []

    def choose(self, prefix_ids: abc.Sequence[int], logits: torch.Tensor) -> int:
        self.logits.append(logits.clone())
        return super().choose(prefix_ids, logits)


@dataclass
class _ScriptedDrafter:
    """Knows the baseline's answer to each prompt; how much of a draft is right is its `kind`."""

    kind: str
    answers: Mapping[Prompt, Prompt]
    vocabulary: int
    longest: int

    def start(
        self, prompt_ids: abc.Sequence[int], earlier: abc.Sequence[abc.Sequence[int]] = ()
    ) -> None:
        self._continuation = list(self.answers[tuple(prompt_ids)])
        self._random = random.Random(str(prompt_ids))

    def propose(self, budget: int, longest: int, threshold: float) -> Draft:
        tokens = self._continuation[: min(budget, self.longest)]
        cut = self._random.randint(0, len(tokens))
        if self.kind == "junk":
            return Draft(tuple(self._random.randrange(self.vocabulary) for _ in tokens[:cut]))
        num_right = {"right": len(tokens), "wrong": 0, "partly_right": cut}[self.kind]
        wrong = [(token + 1) % self.vocabulary for token in tokens[num_right:]]
        return Draft((*tokens[:num_right], *wrong))

    def observe(self, token_ids: abc.Sequence[int], verdict: Verdict) -> None:
        del self._continuation[: len(token_ids)]

    def finish(self) -> None:
        """Nothing to keep."""


@dataclass(frozen=True)
class Setting:
    """A model, and an engine of some steps and batch size, for some prompts."""

    model: Any
    prompts: list[Prompt]
    budget: int
    longest: int  # draft, in tokens
    batch_size: int
    exact: ExactMode | None

    def compare_with_none(self, drafters: abc.Sequence[str]) -> list[Result]:
        baseline, logits = self._record(drafter_factory(DraftOptions("none")))
        answers = {
            prompt: answer.token_ids for prompt, answer in zip(self.prompts, baseline, strict=True)
        }
        return [self._compare(drafter, answers, logits) for drafter in drafters]

    def _compare(self, drafter: str, answers: Mapping[Prompt, Prompt], logits: Logits) -> Result:
        vocabulary = self.model.config.vocab_size
        make: DrafterFactory = partial(_ScriptedDrafter, drafter, answers, vocabulary, self.longest)
        if drafter not in SCRIPTED:
            make = drafter_factory(DraftOptions(drafter, gamma=1, num_draft_tokens=self.longest))
        generations, drafted_logits = self._record(make)
        # These choosers are not asked: the engine takes the argmax of all positions at once.
        greedy = [TokenChooser(LogitsProcessorList(), do_sample=False) for _ in self.prompts]
        by_argmax = self._answer(make, greedy)
        attempts = [attempt for generation in generations for attempt in generation.attempts]
        tokens = list(answers.values())
        return {
            "dtype": str(self.model.dtype).removeprefix("torch."),
            "steps": self.exact.name if self.exact else "any",
            "longest_draft": self.longest,
            "batch_size": self.batch_size,
            "drafter": drafter,
            **_compare_logits(logits, drafted_logits),
            "tokens_equal": [generation.token_ids for generation in generations] == tokens,
            "argmax_tokens_equal": [generation.token_ids for generation in by_argmax] == tokens,
            "drafted": sum(attempt.num_drafted for attempt in attempts),
            "accepted": sum(attempt.num_accepted for attempt in attempts),
        }

    def paired(self) -> Result:
        """Drafters of the registry and the baseline answer in turn, by each engine's argmax."""
        options = [DraftOptions(name, gamma=1, num_draft_tokens=self.longest) for name in PAIRED]
        engines = [self._engine(drafter_factory(each)) for each in options]
        answers: dict[int, list[PairedAnswer]] = {}
        greedy = [TokenChooser(LogitsProcessorList(), do_sample=False) for _ in self.prompts]
        rules = [StopRule(self.budget) for _ in self.prompts]
        paired = PairedEngine(self.model, engines)
        paired.generate(list(map(Sequence, self.prompts, rules, greedy)), answers.__setitem__)
        pairs = [pair for each in answers.values() for pair in each]
        by_arm = zip(*((pair.baseline, pair.generation) for pair in pairs), strict=True)
        seconds = [sum(each.counts.decode_seconds or 0.0 for each in arm) for arm in by_arm]
        return {
            "dtype": str(self.model.dtype).removeprefix("torch."),
            "batch_size": self.batch_size,
            "answers": len(pairs),
            "identical": sum(pair.difference is None for pair in pairs),
            # Of a few short answers: no measure of a drafter.
            "decode_seconds_of_baseline_and_drafters": [round(each, 3) for each in seconds],
        }

    def _record(self, make: DrafterFactory) -> tuple[list[Generation], Logits]:
        choosers = [_RecordingChooser() for _ in self.prompts]
        return self._answer(make, choosers), [chooser.logits for chooser in choosers]

    def _answer(
        self, make: DrafterFactory, choosers: abc.Sequence[TokenChooser]
    ) -> list[Generation]:
        engine = self._engine(make)
        # Unequal budgets: rows end, and are refilled, at different steps.
        rules = [StopRule(self.budget + 3 * index) for index in range(len(self.prompts))]
        return engine.generate(list(map(Sequence, self.prompts, rules, choosers)))

    def _engine(self, make: DrafterFactory) -> Engine:
        return Engine(
            self.model,
            make,
            num_draft_tokens=self.longest,
            exact=self.exact,
            batch_size=self.batch_size,
        )


def _compare_logits(baseline: Logits, drafted: Logits) -> Result:
    compared, mismatches = 0, []
    for request, pair in enumerate(zip(baseline, drafted, strict=True)):
        # Of unequal length only if the tokens differ, which is a failure of its own.
        for token, (a, b) in enumerate(zip(*pair, strict=False)):
            compared += 1
            if not torch.equal(a, b):
                distance = float((a - b).abs().max())
                mismatches.append(
                    {"request": request, "output_token": token, "max_difference": distance}
                )
    first = mismatches[0] if mismatches else None
    return {"compared": compared, "equal": compared - len(mismatches), "first_mismatch": first}


def is_equal(row: Result) -> bool:
    same_tokens: bool = row["tokens_equal"] and row["argmax_tokens_equal"]
    return same_tokens and row["equal"] == row["compared"] > 0
