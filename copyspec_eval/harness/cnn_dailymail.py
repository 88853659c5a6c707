"""The task `cnn_dailymail_extractive`: name the key sentences of a news article."""

from __future__ import annotations

import bisect
import re
from typing import Any

from lm_eval.api.model import TemplateLM
from lm_eval.models.api_models import TemplateAPI
from lm_eval.models.utils import normalize_gen_kwargs

from copyspec_eval.harness import reference_prompts
from copyspec_eval.harness.multiturn import MultiTurnTask, TurnInstance
from copyspec_eval.harness.public_data import read_test_split
from copyspec_eval.scoring.cnn_dailymail import SCORES, UNSTEMMED, score_summary, unstemmed_rouge

_PUBLIC = ("abisee/cnn_dailymail", "3.0.0", "cnn_dailymail/*.jsonl")
# The instruction comes last, since lm-eval cuts prompts at the front.
PROMPT = (
    "Article:\n{article}\n\nPick the 2 or 3 sentences of this article that best sum it up. Copy "
    "them word for word, and write nothing else."
)


class CnnDailyMailTask(MultiTurnTask):
    """One turn: an article, and what to do with it; scored by ROUGE and by what is verbatim.

    `dataset_kwargs: {prompts: reference}` asks in the words of the paper's own code, and adds ROUGE
    as that code takes it.
    """

    def documents(self, dataset_kwargs: dict[str, Any]) -> list[dict[str, Any]]:
        self._is_reference = reference_prompts.is_reference(dataset_kwargs)
        self._prompt = reference_prompts.summary_prompt() if self._is_reference else PROMPT
        articles = read_test_split(*_PUBLIC, ("id", "article", "highlights"))
        return [article.fields for article in articles]

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

    def build_all_requests(self, **kwargs: Any) -> None:
        """As `MultiTurnTask`; then cut the ends of articles that do not fit the model's context."""
        super().build_all_requests(**kwargs)
        # lm-eval shows a task this method of the model, and nothing else.
        lm = getattr(kwargs.get("chat_template"), "__self__", None)
        # lm-eval does not know the context of a server's model: it says 2,048 tokens for all.
        if isinstance(lm, TemplateLM) and not isinstance(lm, TemplateAPI):
            for instance in self._instances:
                cut_to_fit(instance, lm, self._prompt)


def cut_to_fit(instance: TurnInstance, lm: TemplateLM, prompt: str = PROMPT) -> None:
    """Cut words off the article's end until the prompt fits `lm`'s context; the first one stays."""
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
