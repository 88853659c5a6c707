"""The quickstart's tasks: conversations whose right answers are known exactly."""

from __future__ import annotations

from typing import Any

from datasets import Dataset
from lm_eval.api.metrics import mean

from copyspec_eval.errors import report_errors_in_one_line
from copyspec_eval.harness.gsm8k import GSM8KSelfCorrectionTask
from copyspec_eval.harness.multiturn import MultiTurnTask
from copyspec_eval.paths import tasks_dir
from copyspec_eval.scoring.cnn_dailymail import verbatim_share
from copyspec_eval.sources import read_jsonl

report_errors_in_one_line()

FOLDER = "copyspec_quickstart"


class QuickstartTask(MultiTurnTask):
    """Documents with `turns` and the right `answers`, `dataset_kwargs: {documents: NAME}`.

    Figures: `exact_turn{k}`, the share of answers that are the right one, spaces around it apart.
    """

    def __init__(self, config: dict[str, Any]) -> None:
        super().__init__(config)
        for turn in range(1, self.num_turns + 1):
            self._aggregation_list[f"exact_turn{turn}"] = mean
            self._higher_is_better[f"exact_turn{turn}"] = True

    def download(self, dataset_kwargs: dict[str, Any] | None = None, **kwargs: Any) -> None:
        """Read the documents, which lie beside the task's YAML file, as the split "test"."""
        path = tasks_dir() / FOLDER / f"{(dataset_kwargs or {})['documents']}.jsonl"
        self.dataset = {"test": Dataset.from_list([row.fields for row in read_jsonl(path)])}

    def user_turns(self, doc: dict[str, Any]) -> list[str]:
        """As they stand in the document."""
        return list(doc["turns"])

    def doc_to_target(self, doc: dict[str, Any], doc_to_target: Any = None) -> Any:
        """The right last answer."""
        return doc["answers"][-1]

    def process_results(self, doc: dict[str, Any], results: list[Any]) -> dict[str, Any]:
        """The conversation's figures, and 1 for each right answer."""
        figures = super().process_results(doc, results)
        if "bypass" in figures:
            return figures
        pairs = zip(results, doc["answers"], strict=True)
        right = [str(answer or "").strip() == expected for answer, expected in pairs]
        return figures | {f"exact_turn{turn}": float(is_) for turn, is_ in enumerate(right, 1)}


class QuickstartSelfCorrectionTask(QuickstartTask, GSM8KSelfCorrectionTask):
    """Three turns, whose programs are run besides, as GSM8K's are."""


class QuickstartExtractiveTask(QuickstartTask):
    """One turn; besides, the share of the sentences that stand in the article word for word."""

    def __init__(self, config: dict[str, Any]) -> None:
        super().__init__(config)
        self._aggregation_list["verbatim"] = mean
        self._higher_is_better["verbatim"] = True

    def process_results(self, doc: dict[str, Any], results: list[Any]) -> dict[str, Any]:
        """The turn's figures, and what is verbatim."""
        figures = super().process_results(doc, results)
        if "bypass" in figures:
            return figures
        return figures | {"verbatim": verbatim_share(str(results[0] or ""), doc["article"])}
