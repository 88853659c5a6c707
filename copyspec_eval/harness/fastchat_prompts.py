"""Prompts of FastChat's conversation templates, in which the paper's code asks MT-Bench.

The template is chosen by the model's name, with FastChat's own adapters, or with
`--metadata '{"template": "NAME"}'`.
"""

from __future__ import annotations

import functools
import importlib.util
from collections.abc import Mapping
from typing import Any

from copyspec_eval.errors import OptionError
from copyspec_eval.harness.multiturn import TurnInstance

_FALLBACK = "zero_shot"
"""For a name that no adapter knows, as in the paper's copy of FastChat
(`BaseModelAdapter.get_default_conv_template`). FastChat itself takes `one_shot`."""


def template_of_run(metadata: Mapping[str, Any]) -> str:
    """The name of the template.

    Args:
        metadata: of the task, which has the model's arguments and what `--metadata` adds.

    Raises:
        OptionError: FastChat is not installed or has no such template.
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
        for message in self.messages():
            role, text = message["role"], message["content"]
            if role == "system":
                conversation.set_system_message(text)
            elif role == "user":
                conversation.append_message(conversation.roles[0], text)
                conversation.append_message(conversation.roles[1], None)
            else:
                conversation.update_last_message(_cut(text, conversation.stop_str))
        return str(conversation.get_prompt())


def _cut(answer: str, stops: str | list[str] | None) -> str:
    """An answer as later turns see it: up to the first stop string that is not at its beginning."""
    stops = [stops] if isinstance(stops, str) else stops or []
    ends = [end for end in map(answer.find, stops) if end > 0]
    return answer[: min(ends, default=None)].strip()
