"""A model that is changed between two calls answers as a fresh copy of it."""

import copy
import random
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from types import SimpleNamespace
from typing import Any

import model_changes as made
import pytest
import torch
from asking import generated, model_from
from byte_model import loaded
from model_changes import CHANGES
from peft import LoraConfig, get_peft_model
from timed_models import instances
from tiny_models import tiny_config

import copyspec_eval
from copyspec_eval import generate
from copyspec_eval.errors import RequestError
from copyspec_eval.harness.lm import CopySpecLM

PROMPT = "to be or not to be, that is the question: to be or not to"
PROMPTS = [PROMPT, "abc " * 9, "hello, hello"]
KINDS: dict[str, dict[str, Any]] = {
    "llama": {},
    # Not all values are hashed.
    "mistral": {"hidden_size": 280, "intermediate_size": 500, "sliding_window": 4096},
    "qwen2": {"tie_word_embeddings": True},
    "gemma2": {"sliding_window": 24},
    "gpt2": {},
}


@pytest.fixture(scope="module")
def tokenizer(byte_model):
    return loaded(byte_model)[1]


@pytest.fixture(scope="module")
def models(tokenizer):
    return {kind: tiny_model(kind, tokenizer) for kind in KINDS}


def tiny_model(kind, tokenizer):
    shape = {"vocab_size": len(tokenizer), "initializer_range": 0.2, "bos_token_id": None}
    return model_from(tiny_config(kind, **shape, **KINDS[kind]), std=None)


def ours(model, tokenizer, prompt=PROMPT, exact=False, max_new_tokens=20, **more):
    more |= {"exact": exact, "max_new_tokens": max_new_tokens}
    return list(generate(model, tokenizer, prompt, **more)[0].token_ids)


def check_fresh(model, tokenizer):
    wanted = ours(copy.deepcopy(model), tokenizer, exact=True)
    assert ours(model, tokenizer, exact=True) == wanted


def check_changes(model, tokenizer, changes, choose, exact):
    model = copy.deepcopy(model)
    answer = partial(ours, tokenizer=tokenizer, exact=exact, max_new_tokens=10)
    answer(model, prefix_cache="1MB")
    for number, change in enumerate(changes):
        change(model, choose)
        fresh = answer(copy.deepcopy(model), prefix_cache=0)
        names = [each.__name__ for each in changes[: number + 1]]
        for size in (0, "1MB"):
            assert answer(model, prefix_cache=size) == fresh, (names, size)


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__)
def test_a_changed_model_answers_as_a_fresh_copy(change, models, tokenizer):
    kind = "gemma2" if change is made.change_the_config else "mistral"
    before = [made.add_an_adapter] * 2 if "adapter" in change.__name__ else []
    changes = [*before, change, change]
    choose = random.Random(2)  # with it, each adapter is set in turn
    check_changes(models[kind], tokenizer, changes, choose, exact=False)


@pytest.mark.parametrize("count", [5, pytest.param(1000, marks=pytest.mark.slow)])
def test_random_sequences_of_changes(count, models, tokenizer):
    for seed in range(count):
        choose = random.Random(seed)
        kind = choose.choice([*KINDS])
        changes = choose.choices(CHANGES, k=choose.randint(1, 3))
        check_changes(models[kind], tokenizer, changes, choose, exact=seed % 4 == 0)


def test_a_hook_of_all_modules(models, tokenizer):
    def hook(module, given, output):
        return -output if type(module) is torch.nn.Linear else None

    check_fresh(models["llama"], tokenizer)
    handle = torch.nn.modules.module.register_module_forward_hook(hook)
    try:
        check_fresh(models["llama"], tokenizer)
    finally:
        handle.remove()
    check_fresh(models["llama"], tokenizer)


def test_autocast_around_some_of_the_calls(models, tokenizer):
    for dtype in (None, torch.bfloat16, None, torch.float16):
        with torch.autocast("cpu", dtype or torch.bfloat16, enabled=dtype is not None):
            check_fresh(models["llama"], tokenizer)


def test_a_model_of_peft_by_its_own_methods(tokenizer):
    adapter = LoraConfig(r=4, target_modules=["q_proj", "down_proj"], init_lora_weights=False)
    model = get_peft_model(tiny_model("qwen2", tokenizer), adapter, "first").eval()
    check_fresh(model, tokenizer)
    model.add_adapter("second", adapter)
    changes: list[Any] = [partial(model.set_adapter, name) for name in ("second", "first")]
    for change in (*changes, model.merge_adapter, model.unmerge_adapter):
        change()
        check_fresh(model, tokenizer)
    with model.disable_adapter():
        check_fresh(model, tokenizer)
    check_fresh(model, tokenizer)
    check_fresh(model.merge_and_unload(), tokenizer)


def test_a_model_that_is_changed_between_two_tasks_of_a_run(tokenizer):
    choose, model = random.Random(5), tiny_model("qwen2", tokenizer)
    evaluated = CopySpecLM(model, tokenizer=tokenizer, exact=False)
    texts = []
    for change in (made.add_an_adapter, made.add_to_a_layer, *[made.hook_with_a_state] * 2):
        [request] = instances({"until": [], "max_gen_toks": 12}, contexts=[PROMPT])
        texts += evaluated.generate_until([request], disable_tqdm=True)
        fresh = CopySpecLM(copy.deepcopy(model), tokenizer=tokenizer, exact=False)
        assert fresh.generate_until([request], disable_tqdm=True) == texts[-1:]
        change(model, choose)
    assert len({*texts}) > 1


def everything(model):
    names = [sorted(vars(module)) for module in model.modules()]
    return [*names, repr(model.config), model.config._attn_implementation]


def plain(model, tokenizer, prompt, **more):
    return generated(model, tokenizer(prompt)["input_ids"], 20, **more)


@pytest.mark.parametrize("num_rounds", [2, pytest.param(20, marks=pytest.mark.slow)])
def test_threads_over_two_models_beside_plain_generate(num_rounds, tokenizer):
    models = [tiny_model(kind, tokenizer) for kind in ("llama", "gemma2")]
    wanted = {
        (n, prompt): plain(models[n], tokenizer, prompt) for n in (0, 1) for prompt in PROMPTS
    }
    before = list(map(everything, models))
    custom = partial(plain, custom_generate=copyspec_eval.custom_generate)

    def work(seed):
        choose = random.Random(seed)
        for _ in range(6):
            number, prompt = choose.choice([*wanted])
            way: Any = choose.choice([ours, plain, custom])
            assert way(models[number], tokenizer, prompt) == wanted[number, prompt], way

    for start in range(0, 4 * num_rounds, 4):
        with ThreadPoolExecutor(4) as pool:
            [*pool.map(work, range(start, start + 4))]
    assert list(map(everything, models)) == before


def test_a_model_is_never_changed_and_refuses_a_call_while_it_answers(tokenizer):
    """So a saved one has nothing of the engine."""
    model = tiny_model("gemma2", tokenizer)
    before, noted = everything(model), []

    def put(tokens):
        noted.append(everything(model))
        with pytest.raises(RequestError, match="the model is generating already"):
            ours(model, tokenizer)

    streamer = SimpleNamespace(put=put, end=lambda: None)
    ours(model, tokenizer, streamer=streamer)
    assert len(noted) > 1
    assert all(each == before for each in (*noted, everything(model)))
