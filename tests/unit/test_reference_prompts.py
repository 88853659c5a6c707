"""The tasks `*_paper` ask as the paper's own code does, character by character."""

import ast
import json
from collections import defaultdict
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
from lm_eval.tasks import TaskManager
from transformers import AutoTokenizer

from copyspec_eval.errors import DataError, OptionError
from copyspec_eval.harness import reference_prompts
from copyspec_eval.harness.multiturn import MultiTurnTask
from copyspec_eval.paths import tasks_dir

DOCUMENTS = 20


@pytest.fixture(scope="module")
def tokenizer(data_dir: Path) -> Any:
    return AutoTokenizer.from_pretrained(data_dir / "tokenizers" / "qwen2.5")


def task_named(name: str, metadata: Any = None) -> MultiTurnTask:
    manager = TaskManager(include_path=str(tasks_dir()), include_defaults=False, metadata=metadata)
    task: MultiTurnTask = manager.load([name])["tasks"][name]
    return task


def prompts_of(task: MultiTurnTask, tokenizer: Any, answers: Any) -> list[list[str]]:
    """The rendered prompts of each document, its earlier turns answered as `answers` says."""

    def template(messages: list[dict[str, str]], add_generation_prompt: bool = True) -> str:
        text: str = tokenizer.apply_chat_template(
            messages,
            tokenize=False,
            add_generation_prompt=add_generation_prompt,
            continue_final_message=not add_generation_prompt,
        )
        return text

    task.build_all_requests(limit=DOCUMENTS, apply_chat_template=True, chat_template=template)
    by_document: dict[int, list[str]] = defaultdict(list)
    for instance in task.instances:
        by_document[instance.doc_id].append(instance.args[0])
        instance.resps = [answers(instance.doc_id, instance.turn)]
    return [by_document[number] for number in range(DOCUMENTS)]


def test_prompts_are_those_of_recorded_answers(data_dir, tokenizer):
    file = data_dir / "traces" / "gsm8k_self_correction__qwen2.5-7b.jsonl"
    rows = [json.loads(line) for line in file.read_text().splitlines()[: 3 * DOCUMENTS]]
    texts = {(row["id"], row["turn"]): tokenizer.decode(row["answer_ids"]) for row in rows}
    task = task_named("gsm8k_self_correction_paper")
    asked = prompts_of(task, tokenizer, lambda *key: texts[key].removesuffix("<|im_end|>"))
    assert [*chain(*asked)] == [tokenizer.decode(row["prompt_ids"]) for row in rows]


ANSWERS = (" An answer.\n", "It stops. ### Human: and goes on", "### at the beginning", "")


def as_the_reference(template: str, questions: list[str], answers: list[str]) -> list[str]:
    """The prompts of each turn, as `get_model_answers` of its gen_model_answer.py makes them."""
    from fastchat.conversation import get_conv_template

    conv, prompts = get_conv_template(template), []
    for question, output in zip(questions, answers, strict=True):
        conv.append_message(conv.roles[0], question)
        conv.append_message(conv.roles[1], None)
        prompts.append(conv.get_prompt())
        if conv.stop_str and output.find(conv.stop_str) > 0:
            output = output[: output.find(conv.stop_str)]
        conv.update_last_message(output.strip())
    return prompts


@pytest.mark.parametrize(
    ("name", "metadata", "template", "begins"),
    [
        ("bench", {"pretrained": "Qwen/Qwen2.5-7B-Instruct"}, "qwen-7b-chat", "<|im_start|>system"),
        # The name in the reference's own command for Llama, whose FastChat knows no such model.
        ("redundant", {"model": "llama3-8B-experiments-redundant-copy"}, "zero_shot", "A chat "),
        ("bench", {"pretrained": "some/m", "template": "vicuna_v1.1"}, "vicuna_v1.1", "A chat "),
    ],
)
def test_conversations_are_those_of_fastchat(data_dir, tokenizer, name, metadata, template, begins):
    task = task_named(f"mt_{name}_paper", metadata)
    asked = prompts_of(task, tokenizer, lambda doc, turn: ANSWERS[(doc + turn) % len(ANSWERS)])
    for number, prompts in enumerate(asked):
        answers = [ANSWERS[(number + turn) % len(ANSWERS)] for turn in (1, 2)]
        questions = task.user_turns(task.task_docs[number])
        assert prompts == as_the_reference(template, questions, answers)
        assert prompts[0].startswith(begins)
    assert task.instances[0].args[1]["repetition_penalty"] == 1.0, "plain argmax"


def test_a_template_that_fastchat_lacks_is_refused(data_dir):
    with pytest.raises(OptionError, match="FastChat has no template 'llama-4'; use one of"):
        task_named("mt_bench_paper", {"template": "llama-4"})


def test_summaries_are_asked_as_the_references_own_function_does(data_dir):
    tree = ast.parse((data_dir / reference_prompts.CNN_DAILYMAIL_FILE).read_text())
    functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]
    [function] = [each for each in functions if each.name == "extractive_prompt"]
    names: dict[str, Any] = {}
    exec(compile(ast.Module([function], []), "reference", "exec"), names)
    task = task_named("cnn_dailymail_extractive_paper")
    for doc in list(task.task_docs)[:DOCUMENTS]:
        assert task.user_turns(doc) == [names["extractive_prompt"](doc["article"])]
    assert task.config.generation_kwargs["max_gen_toks"] == 1024


def test_problems_are_asked_as_evalplus_does(data_dir, tokenizer):
    from evalplus.provider.utility import EOS, make_raw_chat_prompt

    task = task_named("humaneval_evalplus_paper")
    asked = prompts_of(task, tokenizer, lambda doc, turn: "")
    prefixes = instruction, response = reference_prompts.evalplus_prefixes()
    assert instruction.startswith("Please provide a self-contained Python script that solves")
    assert response.startswith("Below is a Python script with a self-contained function that")
    for doc, [prompt] in zip(task.task_docs, asked, strict=False):
        problem = doc["prompt"].strip() + "\n"
        assert prompt == make_raw_chat_prompt(problem, *prefixes, tokenizer)
        assert prompt.endswith("```python\n")
    instance: Any = task.instances[0]
    _, settings = instance.args
    assert (settings["until"], settings["max_gen_toks"]) == ([], 1024), "the text is cut later"
    for stop in (*EOS, "\n```\n"):
        instance.resps = [f"    return 1{stop}more"]
        assert instance.raw_solution == "    return 1"


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("humaneval_evalplus_paper", "which no chat server allows"),
        ("mt_bench_paper", "renders the whole prompt, which a chat server does not take"),
    ],
)
def test_a_server_that_takes_messages_is_refused(data_dir, name, message):
    task = task_named(name)
    messages: Any = lambda messages, **_: list(messages)  # noqa: E731
    task.build_all_requests(limit=1, apply_chat_template=True, chat_template=messages)
    with pytest.raises(OptionError, match=message):
        _ = task.instances[0].args


def test_another_file_is_refused(local_data):
    with pytest.raises(DataError, match=r"cp_gsm\.py: no such file"):
        reference_prompts.gsm8k_prompts()
    file = local_data / reference_prompts.GSM8K_FILE
    file.parent.mkdir()
    file.write_text("def multi_round_program(): pass\n")
    with pytest.raises(DataError, match=r"its SHA-256 is \w{12}…, not the published dd6630b7a961…"):
        reference_prompts.gsm8k_prompts()


def test_other_wordings_are_refused():
    with pytest.raises(OptionError, match=r"unknown value of prompts 'referense'.*'reference'"):
        reference_prompts.is_reference({"prompts": "referense"})
