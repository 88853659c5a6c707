"""The tasks of question files and of the quickstart; the others have modules of their own."""

from __future__ import annotations

import functools
import importlib.util
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from copyspec_eval import sources
from copyspec_eval.errors import DataError, OptionError
from copyspec_eval.harness.gsm8k import GSM8KSelfCorrectionTask
from copyspec_eval.harness.multiturn import MultiTurnTask, TurnInstance
from copyspec_eval.paths import tasks_dir
from copyspec_eval.scoring.cnn_dailymail import verbatim_share

QUICKSTART = "copyspec_quickstart"

# For a name that no adapter knows, as in the paper's copy of FastChat
# (`BaseModelAdapter.get_default_conv_template`). FastChat itself takes `one_shot`.
_FALLBACK = "zero_shot"


class QuestionFileTask(MultiTurnTask):
    """Conversations of a FastChat-style question file, `dataset_kwargs: {questions: FILE}`.

    FILE is one of `copyspec_eval.sources.FILES`, or a path (docs/tasks.md). With
    `prompts: fastchat`, FastChat's template renders the prompts, as in the paper's code.
    """

    def documents(self, dataset_kwargs: dict[str, Any]) -> list[dict[str, Any]]:
        name, prompts = dataset_kwargs.get("questions"), dataset_kwargs.get("prompts")
        is_known = dataset_kwargs.keys() <= {"questions", "prompts"}
        if not isinstance(name, str) or not is_known or prompts not in (None, "fastchat"):
            raise OptionError(
                f"{self.config.task}: dataset_kwargs {dataset_kwargs!r}; give questions: FILE, and "
                "prompts: fastchat or nothing else"
            )
        self._template = template_of_run(self.config.metadata or {}) if prompts else ""
        path = sources.locate(name) if name in sources.FILES else Path(name).expanduser()
        if not path.is_file():
            raise DataError(
                f"{path}: no such file; give a path from the folder that lm_eval is started in, or "
                f"one of {', '.join(file for file in sources.FILES if 'question' in file)}"
            )
        return [dict(question) for question in sources.read_questions(path)]

    def new_request(self, *args: Any) -> TurnInstance:
        if not self._template:
            return super().new_request(*args)
        request = FastChatInstance(*args)
        request.template = self._template
        return request


def template_of_run(metadata: Mapping[str, Any]) -> str:
    """The name of FastChat's conversation template, in which the paper's code asks MT-Bench.

    FastChat's adapters choose it by the model's name, or `--metadata '{"template": "NAME"}'` does:
    a task's `metadata` has the model's arguments too.
    """
    if importlib.util.find_spec("fastchat") is None:
        raise OptionError("prompts: fastchat needs FastChat; pip install 'copyspec-eval[judge]'")
    name = metadata.get("template")
    if name is None:
        return _template_of_model(str(metadata.get("pretrained") or metadata.get("model") or ""))
    from fastchat.conversation import conv_templates

    if name not in conv_templates:
        raise OptionError(
            f"FastChat has no template {name!r}; use one of fastchat.conversation.conv_templates, "
            f"e.g. {_FALLBACK} or qwen-7b-chat"
        )
    return str(name)


@functools.cache
def _template_of_model(model: str) -> str:
    from fastchat.model.model_adapter import BaseModelAdapter, get_model_adapter

    adapter = get_model_adapter(model)
    if type(adapter) is BaseModelAdapter:
        return _FALLBACK
    return str(adapter.get_default_conv_template(model).name)


class FastChatInstance(TurnInstance):
    """The request for one turn, whose prompt is the whole text of FastChat's template.

    Earlier answers are put in as the reference puts them in: cut at the template's stop string and
    stripped of white space. A chat template of the model has no part in it.
    """

    template: str

    def prompt(self) -> str:
        from fastchat.conversation import get_conv_template

        if self.chat_template and not isinstance(self.chat_template(self.messages()), str):
            raise OptionError(
                "FastChat's template renders the whole prompt, which a chat server does not take; "
                "use a backend that takes text, or the task without _paper"
            )
        conversation = get_conv_template(self.template)
        stops = conversation.stop_str or []
        for message in self.messages():
            role, text = message["role"], message["content"]
            if role == "system":
                conversation.set_system_message(text)
            elif role == "user":
                conversation.append_message(conversation.roles[0], text)
                conversation.append_message(conversation.roles[1], None)
            else:  # up to the first stop string that is not at its beginning
                ends = map(text.find, [stops] if isinstance(stops, str) else stops)
                cut = min((end for end in ends if end > 0), default=None)
                conversation.update_last_message(text[:cut].strip())
        return str(conversation.get_prompt())


class QuickstartTask(MultiTurnTask):
    """Documents with `turns` and the right `answers`, `dataset_kwargs: {documents: NAME}`.

    Figures: `exact_turn{k}`, the share of right answers, ignoring spaces around them.
    """

    def documents(self, dataset_kwargs: dict[str, Any]) -> list[dict[str, Any]]:
        path = tasks_dir() / QUICKSTART / f"{dataset_kwargs['documents']}.jsonl"
        return [row.fields for row in sources.read_jsonl(path)]

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
