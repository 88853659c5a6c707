"""The tasks `*_paper` ask as the paper's own code does, character by character."""

import ast
import inspect
import json
from collections import defaultdict
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from lm_eval.tasks import TaskManager
from transformers import AutoTokenizer

from copyspec_eval import sources
from copyspec_eval.errors import DataError, OptionError
from copyspec_eval.harness import reference_prompts
from copyspec_eval.harness.multiturn import MultiTurnTask
from copyspec_eval.paths import tasks_dir

DOCUMENTS = 20


@pytest.fixture(scope="module")
def tokenizer(data_dir: Path) -> Any:
    return AutoTokenizer.from_pretrained(data_dir / "tokenizers" / "qwen2.5")


@pytest.fixture
def fresh() -> Any:
    """What was read of other files is forgotten, before and after."""
    caches = (reference_prompts.gsm8k_prompts, reference_prompts.summary_prompt)
    for cache in caches:
        cache.cache_clear()
    yield
    for cache in caches:
        cache.cache_clear()


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


def traces_of(path: Path, tokenizer: Any) -> list[list[tuple[str, str]]]:
    """Prompt and answer of each turn, of as many documents, from recorded token ids."""
    by_document: dict[Any, list[tuple[str, str]]] = defaultdict(list)
    for line in path.read_text().splitlines():
        row = json.loads(line)
        prompt, answer = (tokenizer.decode(row[name]) for name in ("prompt_ids", "answer_ids"))
        by_document[row["id"]].append((prompt, answer.removesuffix("<|im_end|>")))
    return list(by_document.values())[:DOCUMENTS]


def test_prompts_are_those_of_recorded_answers(data_dir, tokenizer):
    traces = data_dir / "traces" / "gsm8k_self_correction__qwen2.5-7b.jsonl"
    recorded = traces_of(traces, tokenizer)
    task = task_named("gsm8k_self_correction_paper")
    asked = prompts_of(task, tokenizer, lambda doc, turn: recorded[doc][turn - 1][1])
    assert asked == [[prompt for prompt, _ in turns] for turns in recorded]


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


@pytest.mark.parametrize("name", ["mt_bench_paper", "mt_redundant_paper"])
@pytest.mark.parametrize(
    ("metadata", "template", "begins"),
    [
        (
            {"pretrained": "Qwen/Qwen2.5-7B-Instruct"},
            "qwen-7b-chat",
            "<|im_start|>system\nYou are a",
        ),
        # The name in the reference's own command for Llama, whose FastChat knows no such model.
        (
            {"model": "llama3-8B-experiments-redundant-copy"},
            "zero_shot",
            "A chat between a curious",
        ),
        ({"pretrained": "some/model"}, "zero_shot", "A chat between a curious human"),
        ({"pretrained": "some/model", "template": "vicuna_v1.1"}, "vicuna_v1.1", "A chat between"),
    ],
)
def test_conversations_are_those_of_fastchat(data_dir, tokenizer, name, metadata, template, begins):
    task = task_named(name, metadata)
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


def function_of(data_dir: Path, file: str, name: str, names: dict[str, Any]) -> Any:
    """A function of the reference's, on its own, with `names` for what it finds around it."""
    tree = ast.parse((data_dir / file).read_text())
    [actual] = [n for n in ast.walk(tree) if isinstance(n, ast.FunctionDef) and n.name == name]
    exec(compile(ast.Module([actual], []), file, "exec"), names)
    return names[name]


def test_rounds_are_those_of_the_references_own_function(data_dir):
    """Its function is run with a decoder that answers by a fixed text."""
    asked: list[list[dict[str, str]]] = []

    def template(messages: list[dict[str, str]], **_: Any) -> str:
        asked.append([dict(message) for message in messages])
        return "PROMPT"

    tokenizer = SimpleNamespace(
        bos_token=None, apply_chat_template=template, encode=lambda text: list(text)
    )
    decoder = SimpleNamespace(
        tokenizer=tokenizer,
        target_generate_greedy=lambda prompt, **_: f"{prompt}ANSWER",
        **dict.fromkeys(("turn_tau", "dec_tau", "dec_attempted", "turn_attempted"), 0),
    )
    names: dict[str, Any] = {
        "use_copy": False,
        "time": SimpleNamespace(time=lambda: 0.0),
        "execute_python_code": lambda code: (None, None),
    }
    rounds = function_of(data_dir, reference_prompts.GSM8K_FILE, "multi_round_program", names)
    task = task_named("gsm8k_self_correction_paper")
    for doc in list(task.task_docs)[:DOCUMENTS]:
        asked.clear()
        rounds(doc["question"], decoder)
        users = [[m["content"] for m in messages if m["role"] == "user"] for messages in asked]
        assert users[2] == task.user_turns(doc)
        assert users[:2] == [task.user_turns(doc)[:1], task.user_turns(doc)[:2]]


def test_summaries_are_asked_as_the_references_own_function_does(data_dir):
    prompt = function_of(data_dir, reference_prompts.CNN_DAILYMAIL_FILE, "extractive_prompt", {})
    task = task_named("cnn_dailymail_extractive_paper")
    for doc in list(task.task_docs)[:DOCUMENTS]:
        assert task.user_turns(doc) == [prompt(doc["article"])]
    assert task.config.generation_kwargs["max_gen_toks"] == 1024


def test_problems_are_asked_as_evalplus_does(data_dir, tokenizer):
    from evalplus.provider.utility import EOS, make_raw_chat_prompt

    task = task_named("humaneval_evalplus_paper")
    asked = prompts_of(task, tokenizer, lambda doc, turn: "")
    source = inspect.getsource(__import__("evalplus.codegen", fromlist=["run_codegen"]))
    prefixes = [
        ast.literal_eval(line.split(" = ", 1)[1])
        for name in ("instruction_prefix", "response_prefix")
        for line in source.splitlines()
        if line.startswith(f"    {name} = ")
    ]
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


@pytest.mark.usefixtures("fresh")
def test_another_file_is_refused(local_data):
    file = local_data / reference_prompts.GSM8K_FILE
    with pytest.raises(DataError, match=r"cp_gsm\.py: no such file"):
        reference_prompts.gsm8k_prompts()
    file.parent.mkdir()
    file.write_text("def multi_round_program(): pass\n")
    with pytest.raises(DataError, match=r"its SHA-256 is \w{12}…, not the published dd6630b7a961…"):
        reference_prompts.gsm8k_prompts()


@pytest.mark.usefixtures("fresh")
@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("def other(): pass", "no function extractive_prompt; copy the published file again"),
        ("def extractive_prompt(a): return a + 'x'", "a reference prompt is a BinOp"),
    ],
)
def test_what_is_no_prompt_is_named(monkeypatch, source, message):
    monkeypatch.setattr(reference_prompts, "read_as_published", lambda path: source)
    with pytest.raises(DataError, match=message):
        reference_prompts.summary_prompt()


def test_other_wordings_are_refused():
    assert not reference_prompts.is_reference({})
    with pytest.raises(OptionError, match=r"unknown value of prompts 'referense'.*'reference'"):
        reference_prompts.is_reference({"prompts": "referense"})


def test_published_files_are_pinned(data_dir):
    for path in sources.FILES:
        if path.startswith("reference/"):
            assert "RazvanDu/CopySpec/8797be8" in sources.FILES[path].url
            assert sources.read_as_published(path)
