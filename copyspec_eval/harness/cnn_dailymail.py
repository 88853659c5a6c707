"""The task `cnn_dailymail_extractive`: name the key sentences of a news article."""

from __future__ import annotations

import bisect
import re
from pathlib import Path
from typing import Any

from datasets import Dataset, load_dataset
from lm_eval.api.model import TemplateLM
from lm_eval.models.api_models import TemplateAPI
from lm_eval.models.utils import normalize_gen_kwargs

from copyspec_eval import sources
from copyspec_eval.errors import DataError
from copyspec_eval.harness import reference_prompts
from copyspec_eval.harness.multiturn import ChatTemplate, MultiTurnTask, TurnInstance
from copyspec_eval.paths import DATA_DIR_VARIABLE, data_dir
from copyspec_eval.scoring.cnn_dailymail import (
    SCORES,
    UNSTEMMED,
    score_summary,
    unstemmed_rouge,
)

_FIELDS = ("id", "article", "highlights")
_PUBLIC, _VERSION = "abisee/cnn_dailymail", "3.0.0"
# The instruction comes last, since lm-eval cuts prompts at the front.
PROMPT = (
    "Article:\n{article}\n\nPick the 2 or 3 sentences of this article that best sum it up. Copy "
    "them word for word, and write nothing else."
)


class CnnDailyMailTask(MultiTurnTask):
    """One turn: an article, and what to do with it; scored by ROUGE and by what is verbatim.

    `dataset_kwargs: {prompts: reference}` asks in the words of the paper's own code, and adds ROUGE
    as that takes it.
    """

    def documents(self, dataset_kwargs: dict[str, Any]) -> list[dict[str, Any]] | Dataset:
        self._is_reference = reference_prompts.is_reference(dataset_kwargs)
        self._prompt = reference_prompts.summary_prompt() if self._is_reference else PROMPT
        folder = data_dir()
        return _download() if folder is None else read_articles(folder / "cnn_dailymail")

    def user_turns(self, doc: dict[str, Any]) -> list[str]:
        return [self._prompt.replace("{article}", doc["article"])]

    def target(self, doc: dict[str, Any]) -> str:
        return str(doc["highlights"])

    def score_names(self) -> dict[str, bool]:
        return dict.fromkeys([*SCORES, *UNSTEMMED], True)

    def score(self, doc: dict[str, Any], answers: list[str]) -> dict[str, float]:
        [summary] = answers
        scores = score_summary(summary, doc["article"], doc["highlights"])
        if self._is_reference:
            scores |= unstemmed_rouge(summary, doc["highlights"])
        return scores

    def build_all_requests(
        self, *, chat_template: ChatTemplate | None = None, **kwargs: Any
    ) -> None:
        """As `MultiTurnTask`; then cut the ends of articles that the model has no room for."""
        super().build_all_requests(chat_template=chat_template, **kwargs)
        # lm-eval shows a task nothing of the model but this method of it.
        lm = getattr(chat_template, "__self__", None)
        # What a server's model can hold lm-eval does not know: it takes 2,048 tokens for all.
        if isinstance(lm, TemplateLM) and not isinstance(lm, TemplateAPI):
            for instance in self._instances:
                cut_to_fit(instance, lm, self._prompt)


def cut_to_fit(instance: TurnInstance, lm: TemplateLM, prompt: str = PROMPT) -> None:
    """Shorten the article, at its end and between words, until the prompt fits `lm`'s context.

    The first word stays, whatever the room; lm-eval then cuts or refuses the prompt as any other.
    """
    _, settings = instance.args
    room = lm.max_length - normalize_gen_kwargs(settings, lm.max_gen_toks)["max_gen_toks"]
    article = instance.doc["article"]
    ends = [word.end() for word in re.finditer(r"\S+", article)]

    def tokens_with(num_words: int) -> int:
        instance.question = prompt.replace("{article}", article[: ends[num_words - 1]])
        return len(lm.tok_encode(instance.args[0]))

    if tokens_with(len(ends)) > room:
        fitting = bisect.bisect_right(range(1, len(ends)), room, key=tokens_with)
        tokens_with(max(1, fitting))


def read_articles(folder: Path) -> list[dict[str, Any]]:
    files = sorted(folder.glob("*.jsonl"))
    if not files:
        raise DataError(
            f"{folder}: no .jsonl file there; put the test split there (fields id, article, "
            f"highlights), or unset {DATA_DIR_VARIABLE} to download it"
        )
    return [_article(row) for file in files for row in sources.read_jsonl(file)]


def _article(row: sources.JsonLine) -> dict[str, Any]:
    for name in _FIELDS:
        value = row.fields.get(name)
        if not isinstance(value, str) or not value.strip():
            raise DataError(f"{row.where}: {name} is {value!r:.60}; give a non-empty string")
    return {name: row.fields[name] for name in _FIELDS}


def _download() -> Dataset:
    try:
        return load_dataset(_PUBLIC, _VERSION, split="test")
    except (OSError, ValueError) as error:
        reason = " ".join(str(error).split())
        raise DataError(
            f"cannot download {_PUBLIC} ({reason:.200}); put its test split into "
            f"FOLDER/cnn_dailymail/test.jsonl and set {DATA_DIR_VARIABLE}=FOLDER"
        ) from error
