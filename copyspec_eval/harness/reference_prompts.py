"""The prompts of the paper's own evaluation, for tasks with `prompts: reference`.

Those of GSM8K and CNN/DailyMail come from the syntax tree of the paper's scripts, which are never
run; those of HumanEval and MBPP from EvalPlus's installed package, in the same way.
"""

import ast
import functools
import importlib.util
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from copyspec_eval.errors import DataError, OptionError, unknown_option
from copyspec_eval.harness.multiturn import ChatTemplate
from copyspec_eval.sources import read_as_published

GSM8K_FILE, CNN_DAILYMAIL_FILE = "reference/cp_gsm.py", "reference/evaluate_cnn.py"


def is_reference(dataset_kwargs: Mapping[str, Any]) -> bool:
    """Whether a task's `dataset_kwargs` choose the paper's prompts; by default they are ours."""
    chosen, known = str(dataset_kwargs.get("prompts", "ours")), ("ours", "reference")
    if chosen not in known:
        raise unknown_option("value of prompts", chosen, known)
    return chosen == "reference"


@functools.cache
def gsm8k_prompts() -> tuple[str, ...]:
    """The user's messages of the three rounds, with `{question}` for the problem."""
    function = _function(read_as_published(GSM8K_FILE), GSM8K_FILE, "multi_round_program")
    assigned = _assigned(ast.walk(function), ast.JoinedStr)
    dictionaries = [node for node in ast.walk(function) if isinstance(node, ast.Dict)]
    prompts = []
    for node in sorted(dictionaries, key=lambda node: node.lineno):
        keys = (getattr(key, "value", None) for key in node.keys)
        fields = dict(zip(keys, node.values, strict=True))
        if getattr(fields.get("role"), "value", None) == "user":
            content = fields["content"]
            prompt = assigned[content.id] if isinstance(content, ast.Name) else content
            prompts.append(_text(prompt, {"input_question": "question"}))
    return tuple(prompts)


@functools.cache
def summary_prompt() -> str:
    """The user's message, with `{article}` for the article."""
    source = read_as_published(CNN_DAILYMAIL_FILE)
    function = _function(source, CNN_DAILYMAIL_FILE, "extractive_prompt")
    [returned] = [node for node in ast.walk(function) if isinstance(node, ast.Return)]
    return _text(returned.value, {"article_text": "article"})


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


def stops(benchmark: str | None) -> list[str]:
    """EvalPlus's stop strings for completions; without a benchmark, for a chat."""
    from evalplus.provider.utility import EOS, extra_eos_for_direct_completion

    return [*EOS, *(extra_eos_for_direct_completion(benchmark) if benchmark else ["\n```\n"])]


@functools.cache
def evalplus_prefixes() -> tuple[str, str]:
    """EvalPlus's text before the problem, and its beginning of the model's answer."""
    place = importlib.util.find_spec("evalplus.codegen")
    name = "evalplus/codegen.py"
    source = Path(place.origin).read_text(encoding="utf-8") if place and place.origin else ""
    # Later ones, within branches, belong to other benchmarks.
    texts = _assigned(_function(source, name, "run_codegen").body, ast.expr)
    try:
        return _text(texts["instruction_prefix"]), _text(texts["response_prefix"])
    except KeyError as error:
        raise DataError(
            f"{name}: no {error} in run_codegen; pip install 'copyspec-eval[humaneval]' for the "
            "EvalPlus that has it"
        ) from error


def _function(source: str, file: str, name: str) -> ast.FunctionDef:
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef) and node.name == name:
            return node
    raise DataError(f"{file}: no function {name}; copy the published file again")


def _assigned(nodes: Iterable[ast.AST], kind: type[ast.expr]) -> dict[str, ast.expr]:
    pairs = ((node.targets[0], node.value) for node in nodes if isinstance(node, ast.Assign))
    return {t.id: v for t, v in pairs if isinstance(t, ast.Name) and isinstance(v, kind)}


def _text(node: ast.expr | None, fields: Mapping[str, str] | None = None) -> str:
    """A literal's text; `fields` renames the variables in an f-string."""
    match node:
        case ast.Constant(value=str(text)):
            return text
        case ast.JoinedStr(values=parts):
            return "".join(_text(part, fields) for part in parts)
        case ast.FormattedValue(value=ast.Name(id=name), conversion=-1, format_spec=None):
            return f"{{{(fields or {})[name]}}}"
        case _:
            kind = type(node).__name__
            raise DataError(f"a reference prompt is a {kind}, not a text; copy its files again")
