"""A model that is changed between two calls answers as a fresh copy of it."""

import copy
import random
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from byte_model import save_byte_model
from lm_eval.api.instance import Instance
from model_changes import (
    CHANGES,
    Change,
    add_an_adapter,
    change_the_config,
    hook_with_a_state,
    set_an_adapter,
    swap_all_weights,
)
from peft import LoraConfig, get_peft_model
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

import copyspec_eval
from copyspec_eval import generate
from copyspec_eval.errors import RequestError
from copyspec_eval.harness.lm import CopySpecLM

PROMPT = "to be or not to be, that is the question: to be or not to"
PROMPTS = [PROMPT, "abc " * 9, "hello, hello"]
SHAPE: dict[str, Any] = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
}
KINDS: dict[str, dict[str, Any]] = {
    "llama": SHAPE,
    "mistral": SHAPE | {"hidden_size": 280, "intermediate_size": 500},  # not all values are hashed
    "qwen2": SHAPE | {"tie_word_embeddings": True},
    "gemma2": SHAPE | {"head_dim": 8, "sliding_window": 24, "query_pre_attn_scalar": 8},
    "gpt2": {"n_embd": 32, "n_layer": 2, "n_head": 4},
}


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = tmp_path_factory.mktemp("bytes")
    save_byte_model(folder)
    words: Any = AutoTokenizer
    return words.from_pretrained(folder)


@pytest.fixture(scope="module")
def models(tokenizer: Any) -> dict[str, Any]:
    return {kind: tiny_model(kind, tokenizer) for kind in KINDS}


def tiny_model(kind: str, tokenizer: Any, seed: int = 0) -> Any:
    torch.manual_seed(seed)
    special = {"bos_token_id": None, "eos_token_id": None, "pad_token_id": 0}
    config = AutoConfig.for_model(
        kind, vocab_size=len(tokenizer), initializer_range=0.2, **special, **KINDS[kind]
    )
    auto: Any = AutoModelForCausalLM
    return auto.from_config(config).eval()


def check_changes(
    model: Any, tokenizer: Any, changes: list[Change], choose: random.Random, exact: bool
) -> None:
    def answer(model: Any, prefix_cache: int | str) -> tuple[int, ...]:
        options: dict[str, Any] = {"prefix_cache": prefix_cache, "exact": exact}
        [answer] = generate(model, tokenizer, PROMPT, max_new_tokens=10, **options)
        return answer.token_ids

    model = copy.deepcopy(model)
    answer(model, "1MB")
    for number, change in enumerate(changes):
        change(model, choose)
        answers = {size: answer(model, size) for size in (0, "1MB")}
        fresh = answer(copy.deepcopy(model), 0)
        names = [each.__name__ for each in changes[: number + 1]]
        assert answers == dict.fromkeys(answers, fresh), names


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__)
def test_a_changed_model_answers_as_a_fresh_copy(
    change: Change, models: dict[str, Any], tokenizer: Any
) -> None:
    kind = "gemma2" if change is change_the_config else "mistral"
    before = [add_an_adapter] if "adapter" in change.__name__ else []
    changes = [*before, change, change]
    check_changes(models[kind], tokenizer, changes, random.Random(0), exact=False)


@pytest.mark.parametrize("count", [5, pytest.param(1000, marks=pytest.mark.slow)])
def test_random_sequences_of_changes(count: int, models: dict[str, Any], tokenizer: Any) -> None:
    for seed in range(count):
        choose = random.Random(seed)
        kind = choose.choice([*KINDS])
        changes = choose.choices(CHANGES, k=choose.randint(1, 3))
        check_changes(models[kind], tokenizer, changes, choose, exact=seed % 4 == 0)


def check_fresh(model: Any, tokenizer: Any) -> None:
    [answer] = generate(model, tokenizer, PROMPT, max_new_tokens=10)
    [fresh] = generate(copy.deepcopy(model), tokenizer, PROMPT, max_new_tokens=10)
    assert answer.token_ids == fresh.token_ids


def test_a_hook_of_all_modules(models: dict[str, Any], tokenizer: Any) -> None:
    def hook(module: Any, given: Any, output: Any) -> Any:
        return -output if type(module) is torch.nn.Linear else None

    check_fresh(models["llama"], tokenizer)
    handle = torch.nn.modules.module.register_module_forward_hook(hook)
    try:
        check_fresh(models["llama"], tokenizer)
    finally:
        handle.remove()
    check_fresh(models["llama"], tokenizer)


def test_autocast_around_some_of_the_calls(models: dict[str, Any], tokenizer: Any) -> None:
    for dtype in (None, torch.bfloat16, None, torch.float16, torch.bfloat16):
        with torch.autocast("cpu", dtype or torch.bfloat16, enabled=dtype is not None):
            check_fresh(models["llama"], tokenizer)


def test_a_model_of_peft_by_its_own_methods(tokenizer: Any) -> None:
    adapter = LoraConfig(r=4, target_modules=["q_proj", "down_proj"], init_lora_weights=False)
    model: Any = get_peft_model(tiny_model("qwen2", tokenizer), adapter, "first").eval()
    check_fresh(model, tokenizer)
    model.add_adapter("second", adapter)
    check_fresh(model, tokenizer)
    for change in (partial(model.set_adapter, "second"), model.merge_adapter):
        change()
        check_fresh(model, tokenizer)
        model.unmerge_adapter()
        check_fresh(model, tokenizer)
        with model.disable_adapter():
            check_fresh(model, tokenizer)
        check_fresh(model, tokenizer)
        model.set_adapter("first")
    check_fresh(model.merge_and_unload(), tokenizer)


def test_a_chat_with_a_model_between_whose_turns_an_adapter_is_set(tokenizer: Any) -> None:
    """The next turn's keys and values must not be those of another adapter."""
    choose = random.Random(1)
    model = tiny_model("llama", tokenizer)
    add_an_adapter(model, choose)
    add_an_adapter(model, choose)
    for _ in range(4):
        set_an_adapter(model, choose)
        [answer] = generate(model, tokenizer, PROMPT * 3, max_new_tokens=20)
        [fresh] = generate(copy.deepcopy(model), tokenizer, PROMPT * 3, max_new_tokens=20)
        assert answer.token_ids == fresh.token_ids


def test_a_model_that_is_changed_between_two_tasks_of_a_run(tokenizer: Any) -> None:
    choose = random.Random(5)
    model = tiny_model("qwen2", tokenizer)
    evaluated = CopySpecLM(model, tokenizer=tokenizer, exact=False)
    settings = {"until": [], "max_gen_toks": 12}
    texts = []
    for change in (add_an_adapter, swap_all_weights, hook_with_a_state, hook_with_a_state):
        request = Instance("generate_until", {}, (PROMPT, settings), 0, ("task", 0, 1))
        texts += evaluated.generate_until([request], disable_tqdm=True)
        fresh = CopySpecLM(copy.deepcopy(model), tokenizer=tokenizer, exact=False)
        assert fresh.generate_until([request], disable_tqdm=True) == texts[-1:]
        change(model, choose)
    assert len({*texts}) > 1


def everything(model: Any) -> list[Any]:
    """All that is set on a model and its config."""
    names = [sorted(vars(module)) for module in model.modules()]
    return [*names, repr(model.config), model.config._attn_implementation]


class Door(NamedTuple):
    """A way to an answer's tokens, of twenty."""

    tokenizer: Any

    def ours(self, model: Any, prompt: str) -> list[int]:
        [answer] = generate(model, self.tokenizer, prompt, max_new_tokens=20, exact=False)
        return list(answer.token_ids)

    def plain(self, model: Any, prompt: str, **options: Any) -> list[int]:
        inputs = self.tokenizer(prompt, return_tensors="pt")
        sequences = model.generate(**inputs, max_new_tokens=20, do_sample=False, **options)
        tokens: list[int] = sequences[0, inputs["input_ids"].shape[1] :].tolist()
        return tokens

    def custom(self, model: Any, prompt: str) -> list[int]:
        return self.plain(model, prompt, custom_generate=copyspec_eval.custom_generate)


def run_in_threads(work: Callable[[int], None], seeds: range) -> None:
    threads = [threading.Thread(target=work, args=(seed,)) for seed in seeds]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


@pytest.mark.parametrize("num_rounds", [2, pytest.param(20, marks=pytest.mark.slow)])
def test_threads_over_two_models_beside_plain_generate(num_rounds: int, tokenizer: Any) -> None:
    models = [tiny_model(kind, tokenizer) for kind in ("llama", "gemma2")]
    door = Door(tokenizer)
    wanted = {
        (number, prompt): door.plain(model, prompt)
        for number, model in enumerate(models)
        for prompt in PROMPTS
    }
    before = list(map(everything, models))
    answers: list[tuple[int, str, str, object]] = []

    def work(seed: int) -> None:
        choose = random.Random(seed)
        for _ in range(6):
            number, prompt = choose.choice([*wanted])
            way = choose.choice([door.ours, door.plain, door.custom])
            answer: object
            try:
                answer = way(models[number], prompt)
            except Exception as error:
                answer = repr(error)
            answers.append((number, prompt, way.__name__, answer))

    for start in range(0, 4 * num_rounds, 4):
        run_in_threads(work, range(start, start + 4))
    assert len(answers) == num_rounds * 4 * 6
    assert not [each for each in answers if each[3] != wanted[each[0], each[1]]]
    assert list(map(everything, models)) == before


def test_the_model_is_never_changed_not_even_while_it_answers(tokenizer: Any) -> None:
    model = tiny_model("gemma2", tokenizer)
    before = everything(model)

    class Watching:
        def put(self, tokens: torch.Tensor) -> None:
            assert everything(model) == before

        def end(self) -> None:
            pass

    generate(model, tokenizer, PROMPT, max_new_tokens=8, streamer=Watching())
    assert everything(model) == before


def test_a_call_from_within_a_call_of_the_same_model_is_refused(tokenizer: Any) -> None:
    model = tiny_model("llama", tokenizer)

    class Calling:
        def put(self, tokens: torch.Tensor) -> None:
            generate(model, tokenizer, PROMPT, max_new_tokens=1)

        def end(self) -> None:
            pass

    with pytest.raises(RequestError, match="the model is generating already"):
        generate(model, tokenizer, PROMPT, max_new_tokens=8, streamer=Calling())
    assert generate(model, tokenizer, PROMPT, max_new_tokens=8)


def test_a_saved_and_loaded_model_has_nothing_of_the_engine(tokenizer: Any, tmp_path: Path) -> None:
    model = tiny_model("llama", tokenizer)
    generate(model, tokenizer, PROMPT, max_new_tokens=8)
    torch.save(model, tmp_path / "model.pt")
    loaded = torch.load(tmp_path / "model.pt", weights_only=False)
    assert everything(loaded) == everything(model)
