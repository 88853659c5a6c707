"""A model that is changed between two calls answers as a fresh copy of it."""

from __future__ import annotations

import copy
import random
import threading
from collections.abc import Callable
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
    hook_with_a_state,
    set_an_adapter,
    swap_all_weights,
)
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
    options: dict[str, Any] = {
        "max_new_tokens": 10,
        "prefix_cache": choose.choice([0, "1MB"]),
        "exact": exact,
    }
    model = copy.deepcopy(model)
    generate(model, tokenizer, PROMPT, **options)
    for number, change in enumerate(changes):
        change(model, choose)
        [answer] = generate(model, tokenizer, PROMPT, **options)
        [fresh] = generate(copy.deepcopy(model), tokenizer, PROMPT, **options)
        names = [each.__name__ for each in changes[: number + 1]]
        assert answer.token_ids == fresh.token_ids, (names, options)


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__)
def test_a_changed_model_answers_as_a_fresh_copy(
    change: Change, models: dict[str, Any], tokenizer: Any
) -> None:
    others = ["qwen2", "gemma2", "gpt2"]
    for seed, kind in enumerate(["llama", others[CHANGES.index(change) % 3]]):
        model, choose = models[kind], random.Random(seed)
        before = choose.choices(CHANGES, k=1) if "adapter" in change.__name__ else []
        check_changes(model, tokenizer, [*before, change, change], choose, exact=False)


@pytest.mark.slow
def test_a_thousand_sequences_of_changes(models: dict[str, Any], tokenizer: Any) -> None:
    for seed in range(1000):
        choose = random.Random(seed)
        kind = choose.choice([*KINDS])
        changes = choose.choices(CHANGES, k=choose.randint(1, 3))
        check_changes(models[kind], tokenizer, changes, choose, exact=seed % 4 == 0)


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
    return [sorted(vars(module)) for module in model.modules()] + [repr(model.config)]


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
    models = [tiny_model("llama", tokenizer, seed) for seed in range(2)]
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
