"""The prompts of the paper's own evaluation, for tasks with `prompts: reference`.

Those of GSM8K and CNN/DailyMail are literals in the paper's scripts, which are never run. Those of
HumanEval and MBPP are EvalPlus's.
"""

import ast
import functools
import inspect
import re
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

from copyspec_eval.errors import OptionError, unknown_option
from copyspec_eval.harness.multiturn import ChatTemplate
from copyspec_eval.sources import read_as_published

GSM8K_FILE, CNN_DAILYMAIL_FILE = "reference/cp_gsm.py", "reference/evaluate_cnn.py"
# Line and column of each prompt: the files' hashes are known, so nothing in them moves.
_GSM8K_PROMPTS, _SUMMARY_PROMPT = ((160, 8), (211, 48), (251, 48)), (94, 12)


def is_reference(dataset_kwargs: Mapping[str, Any]) -> bool:
    """Whether a task's `dataset_kwargs` choose the paper's prompts; by default they are ours."""
    chosen, known = str(dataset_kwargs.get("prompts", "ours")), ("ours", "reference")
    if chosen not in known:
        raise unknown_option("value of prompts", chosen, known)
    return chosen == "reference"


def gsm8k_prompts() -> tuple[str, ...]:
    """The user's messages of the three rounds, with `{question}` for the problem."""
    return tuple(_literal(GSM8K_FILE, place, "{question}") for place in _GSM8K_PROMPTS)


def summary_prompt() -> str:
    """The user's message, with `{article}` for the article."""
    return _literal(CNN_DAILYMAIL_FILE, _SUMMARY_PROMPT, "{article}")


def _literal(file: str, place: tuple[int, int], variable: str) -> str:
    """The text of the string that begins at a place of a published file; see `_GSM8K_PROMPTS`."""
    nodes: Any = ast.walk(ast.parse(read_as_published(file)))
    strings = (node for node in nodes if isinstance(node, ast.Constant | ast.JoinedStr))
    node = next(each for each in strings if (each.lineno, each.col_offset) == place)
    parts = node.values if isinstance(node, ast.JoinedStr) else [node]
    return "".join(
        str(part.value) if isinstance(part, ast.Constant) else variable for part in parts
    )


def evalplus_prompt(problem: str, chat_template: ChatTemplate, system: str = "") -> str:
    """EvalPlus's prompt for a chat model, which ends within the model's answer to `problem`."""
    from evalplus.provider.utility import make_raw_chat_prompt

    def render(messages: list[dict[str, str]], tokenize: bool) -> str:
        opening = [{"role": "system", "content": system}] if system else []
        rendered = chat_template([*opening, *messages], add_generation_prompt=False)
        if not isinstance(rendered, str):
            raise OptionError(
                "prompts of EvalPlus begin the answer, which no chat server allows; use a backend "
                "that renders the chat template itself, or the task without _paper"
            )
        return rendered

    tokenizer = SimpleNamespace(apply_chat_template=render, chat_template=chat_template)
    return str(make_raw_chat_prompt(problem, *evalplus_prefixes(), tokenizer))


@functools.cache
def evalplus_prefixes() -> list[str]:
    """EvalPlus's text before a problem, and its beginning of the model's answer."""
    from evalplus.codegen import run_codegen

    # Those after the first two belong to other benchmarks.
    return re.findall(r'_prefix = "(.*)"', inspect.getsource(run_codegen))[:2]


def stops(benchmark: str | None) -> list[str]:
    """EvalPlus's stop strings for completions; without a benchmark, for a chat."""
    from evalplus.provider.utility import EOS, extra_eos_for_direct_completion

    return [*EOS, *(extra_eos_for_direct_completion(benchmark) if benchmark else ["\n```\n"])]
