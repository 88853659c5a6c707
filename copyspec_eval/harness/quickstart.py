"""The quickstart's tasks: conversations whose right answers are known exactly."""

from __future__ import annotations

from typing import Any

from copyspec_eval.harness.gsm8k import GSM8KSelfCorrectionTask
from copyspec_eval.harness.multiturn import MultiTurnTask
from copyspec_eval.paths import tasks_dir
from copyspec_eval.scoring.cnn_dailymail import verbatim_share
from copyspec_eval.sources import read_jsonl

FOLDER = "copyspec_quickstart"


class QuickstartTask(MultiTurnTask):
    """Documents with `turns` and the right `answers`, `dataset_kwargs: {documents: NAME}`.

    Figures: `exact_turn{k}`, the share of right answers, ignoring spaces around them.
    """

    def documents(self, dataset_kwargs: dict[str, Any]) -> list[dict[str, Any]]:
        path = tasks_dir() / FOLDER / f"{dataset_kwargs['documents']}.jsonl"
        return [row.fields for row in read_jsonl(path)]

    # Also before GSM8K's, which asks in its own words.
    user_turns = MultiTurnTask.user_turns

    def target(self, doc: dict[str, Any]) -> str:
        return str(doc["answers"][-1])

    def score_names(self) -> dict[str, bool]:
        exact = {f"exact_turn{turn + 1}": True for turn in range(self.num_turns)}
        return super().score_names() | exact

    def score(self, doc: dict[str, Any], answers: list[str]) -> dict[str, float]:
        figures = super().score(doc, answers)
        for turn, (answer, right) in enumerate(zip(answers, doc["answers"], strict=True), 1):
            figures[f"exact_turn{turn}"] = float(answer.strip() == right)
        return figures


class QuickstartSelfCorrectionTask(QuickstartTask, GSM8KSelfCorrectionTask):
    """Three turns, with programs that run as GSM8K's do."""


class QuickstartExtractiveTask(QuickstartTask):
    """One turn; also the share of sentences that are in the article word for word."""

    def score_names(self) -> dict[str, bool]:
        return super().score_names() | {"verbatim": True}

    def score(self, doc: dict[str, Any], answers: list[str]) -> dict[str, float]:
        verbatim = verbatim_share(answers[0], doc["article"])
        return super().score(doc, answers) | {"verbatim": verbatim}
