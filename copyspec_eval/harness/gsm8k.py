"""GSM8K with self-correction: write a program, go over it, hand in the final one."""

from __future__ import annotations

import logging
from collections import Counter
from typing import Any

from copyspec_eval.errors import DataError
from copyspec_eval.harness import reference_prompts
from copyspec_eval.harness.multiturn import MultiTurnTask
from copyspec_eval.harness.public_data import read_test_split
from copyspec_eval.sandbox import choice, programs
from copyspec_eval.scoring import gsm8k

logger = logging.getLogger("lm_eval.copyspec")

SOURCE = "openai/gsm8k"
LOCAL_FILE = "gsm8k/test.jsonl"

PROMPTS = (
    "Solve this problem with a Python program:\n\n{question}\n\n"
    "Put the program into a ```python block. It has to print the solution, and nothing else. It "
    "must not ask for input. Neither repeat the problem nor write comments.",
    "Go over the code again. Look for issues that could lead to a wrong final answer. If there are "
    "none, change nothing.",
    "Now give the code that you consider correct, in a ```python block. If the first version was "
    "correct, keep it as it was.",
)

SCORED_TURNS = (1, 3)


class GSM8KSelfCorrectionTask(MultiTurnTask):
    """Three turns per problem; the programs of the first and the last one are run and compared.

    All run side by side once the last answer is in. `dataset_kwargs: {prompts: reference}` asks in
    the words of the paper's own code.
    """

    def documents(self, dataset_kwargs: dict[str, Any]) -> list[dict[str, Any]]:
        is_reference = reference_prompts.is_reference(dataset_kwargs)
        self._prompts = reference_prompts.gsm8k_prompts() if is_reference else PROMPTS
        problems = []
        for where, row in read_test_split(SOURCE, "main", LOCAL_FILE, ("question", "answer")):
            try:
                gsm8k.gold_number(row["answer"])
            except ValueError as error:
                raise DataError(
                    f"{where}: answer does not end in #### and a number; copy the file again"
                ) from error
            problems.append(row)
        return problems

    def user_turns(self, doc: dict[str, Any]) -> list[str]:
        return [prompt.replace("{question}", doc["question"]) for prompt in self._prompts]

    def target(self, doc: dict[str, Any]) -> str:
        return str(gsm8k.gold_number(doc["answer"]))

    def score_names(self) -> dict[str, bool]:
        higher_is_better = {"acc_turn1": True, "acc_turn3": True, "wrong_to_right": True}
        return super().score_names() | higher_is_better | {"right_to_wrong": False}

    def check_scoring(self) -> None:
        choice.level()

    def prepare_scores(self) -> None:
        answers = [
            (instance, str(answer or ""))
            for instance in self._instances
            if instance.turn in SCORED_TURNS
            for answer in instance.filtered_resps.values()
        ]
        extracted = (gsm8k.extract_program(answer) for _, answer in answers)
        sources = [source for source in extracted if source is not None]
        self._outcomes = dict(zip(sources, programs.run_all(sources), strict=True))
        verdicts = {turn: Counter[str]() for turn in SCORED_TURNS}
        for instance, answer in answers:
            verdicts[instance.turn][self._verdict(instance.doc, answer)] += 1
        for turn, counts in verdicts.items():
            listed = ", ".join(f"{count} {reason}" for reason, count in counts.most_common(10))
            logger.info("programs of turn %d: %s", turn, listed)

    def score(self, doc: dict[str, Any], answers: list[str]) -> dict[str, float]:
        first, last = (
            self._verdict(doc, answers[turn - 1]) == gsm8k.RIGHT for turn in SCORED_TURNS
        )
        return super().score(doc, answers) | {
            "acc_turn1": float(first),
            "acc_turn3": float(last),
            "right_to_wrong": float(first and not last),
            "wrong_to_right": float(last and not first),
        }

    def _verdict(self, doc: dict[str, Any], answer: str) -> str:
        program = gsm8k.extract_program(answer)
        outcome = None if program is None else self._outcomes[program]
        return gsm8k.verdict(outcome, gsm8k.gold_number(doc["answer"]))
