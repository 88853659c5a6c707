"""Steps whose kernels are called again without the model: same bits, or they are made in full."""

import copy
import mmap
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from asking import asked, engine
from doubles import OracleDrafter
from tiny_models import VOCABULARY, tiny_model

from copyspec_eval.decoding import kernels, repeated_steps
from copyspec_eval.decoding.cache import RowCache
from copyspec_eval.decoding.trial import short_windows

pytestmark = pytest.mark.usefixtures("our_kernels")

PROMPTS = [[5, 6, 7, *range(20)], [9] * 30, [8, 1, 2] * 5]
BUDGET = 40
KINDS = ("llama", "qwen2", "gemma2", "gemma3_text", "phi3", "gpt_neox", "olmo2")


def fresh(model_type: str, dtype: torch.dtype = torch.float32) -> Any:
    return copy.deepcopy(tiny_model(model_type, dtype))


def in_full(model: Any, monkeypatch: pytest.MonkeyPatch, **options: Any) -> list[Any]:
    """Answers by steps that are not recorded."""
    with monkeypatch.context() as patched:
        patched.setattr(repeated_steps, "_records", lambda model: False)
        return tokens(model, **options)


def tokens(model: Any, made: Any = None, **options: Any) -> list[Any]:
    made = made or engine(model, **options)
    return [answer.token_ids for answer in made.generate(asked(PROMPTS, BUDGET))]


def count_calls(model: Any, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Tokens of each call of the model."""
    counted: list[int] = []
    forward = type(model).forward

    def watched(self: Any, *args: Any, **kwargs: Any) -> Any:
        counted.append(kwargs["input_ids"].numel())
        return forward(self, *args, **kwargs)

    monkeypatch.setattr(type(model), "forward", watched)
    return counted


@pytest.mark.parametrize("batch_size", [1, 3])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("model_type", KINDS)
def test_most_steps_do_without_the_model(
    model_type: str, dtype: torch.dtype, batch_size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = fresh(model_type, dtype)
    expected = in_full(model, monkeypatch, batch_size=batch_size)
    counted = count_calls(model, monkeypatch)
    assert tokens(model, batch_size=batch_size) == expected
    steps = [count for count in counted if count <= batch_size]
    # Two are made for each number of rows, the last one recorded; four repeated ones are checked.
    assert len(steps) <= 2 * batch_size + 4
    counted.clear()
    assert tokens(model, batch_size=batch_size) == expected, "by another engine of the model"
    assert all(count > 4 for count in counted), "prompts alone"


@pytest.mark.parametrize("tree", [False, True])
def test_drafts_of_all_lengths(tree: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    model = fresh("qwen2")
    expected = in_full(model, monkeypatch)
    answers = {tuple(ids): answer for ids, answer in zip(PROMPTS, expected, strict=True)}
    made = engine(model, lambda: OracleDrafter(answers, VOCABULARY))
    assert [tokens(model, made) for _ in range(2)] == [expected, expected]


@pytest.mark.parametrize(
    "read",
    [
        lambda hidden: float(hidden.sum()),
        lambda hidden: float(hidden.numpy().sum()),
        lambda hidden: sum(hidden.flatten().tolist()),
        lambda hidden: len((hidden > 1).nonzero()) - 3,
    ],
    ids=["item", "numpy", "list", "shape"],
)
def test_a_model_that_decides_in_python_is_not_repeated(
    read: Callable[..., float], monkeypatch: pytest.MonkeyPatch
) -> None:
    class Head(torch.nn.Linear):
        def forward(self, hidden: torch.Tensor) -> torch.Tensor:
            logits = hidden @ self.weight.T
            return logits.flip(-1) if read(hidden) > 0 else logits

    model = fresh("qwen2")
    model.lm_head = Head(32, VOCABULARY, bias=False)
    expected = in_full(model, monkeypatch)
    counted = count_calls(model, monkeypatch)
    assert tokens(model) == expected
    assert len(counted) == 3 * BUDGET, "the model makes every step"


def test_what_differs_from_the_forward_is_not_repeated(monkeypatch: pytest.MonkeyPatch) -> None:
    """A module that counts its calls."""

    class Head(torch.nn.Linear):
        count = 0

        def forward(self, hidden: torch.Tensor) -> torch.Tensor:
            Head.count += 1
            return (hidden @ self.weight.T).roll(Head.count, -1)

    model = fresh("qwen2")
    model.lm_head = Head(32, VOCABULARY, bias=False)
    counted = count_calls(model, monkeypatch)
    tokens(model)
    assert len(counted) == 3 * BUDGET


def test_a_model_that_asks_for_a_value_makes_every_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """GPT-2 looks for padding."""
    model = fresh("gpt2")
    counted = count_calls(model, monkeypatch)
    tokens(model)
    assert len(counted) == 3 * BUDGET


def test_torchs_attention_is_not_repeated(monkeypatch: pytest.MonkeyPatch) -> None:
    """It takes the rows of a step one by one, as they are when it is recorded."""
    monkeypatch.setattr(kernels, "attends", lambda *args: False)
    model = fresh("qwen2")
    counted = count_calls(model, monkeypatch)
    tokens(model, batch_size=3)
    assert counted.count(3) == BUDGET - 1


def test_a_hook_is_called_at_every_step() -> None:
    model, counted = fresh("qwen2"), list[int]()
    tokens(model)
    model.model.norm.register_forward_hook(lambda *args: counted.append(args[2].shape[1]))
    tokens(model)
    assert counted.count(1) == 3 * (BUDGET - 1)


def test_other_weights_are_read_and_not_the_recorded_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    model = fresh("qwen2")
    made = engine(model)
    before = tokens(model, made)
    with torch.no_grad():
        model.lm_head.weight.copy_(model.lm_head.weight.flip(0))
    after = tokens(model, made)
    assert after != before
    assert after == in_full(model, monkeypatch)


def test_windows_that_were_short_for_a_moment_are_long_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As the check at load makes them."""
    monkeypatch.setattr(repeated_steps, "_CHECKED", 0)
    model = fresh("gemma3_text")
    with short_windows(model):
        short = tokens(model)
    assert short != tokens(model) == in_full(model, monkeypatch)
    with short_windows(model):
        assert tokens(model) == short


def test_longer_requests_repeat_the_steps_of_shorter_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    model = fresh("gpt_neox")
    counted = count_calls(model, monkeypatch)
    made = engine(model)
    made.generate(asked([[5, 6, 7]], 10))
    counted.clear()
    made.generate(asked([[place % 50 for place in range(1500)]], 10))
    assert sum(counted) == 1500, "the prompt alone"


def test_a_cache_that_is_too_short_makes_room_for_a_longer_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(repeated_steps, "_KEYS", 64)
    monkeypatch.setattr(repeated_steps, "_ROOM", 1)
    model = fresh("gpt_neox")
    made = engine(model)
    for length in (20, 1500, 20):
        prompts = [[(7 * place + place**2) % 50 for place in range(length)]]
        [answer] = made.generate(asked(prompts, 5))
        with monkeypatch.context() as patched:
            patched.setattr(repeated_steps, "_records", lambda model: False)
            [expected] = engine(model).generate(asked(prompts, 5))
        assert answer.token_ids == expected.token_ids


def test_nothing_of_a_request_is_left_to_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor does a long cache take memory for what no request writes."""
    model, caches = fresh("qwen2"), list[RowCache]()
    clear = RowCache.clear

    def watched(cache: RowCache) -> None:
        caches.append(cache)
        clear(cache)

    monkeypatch.setattr(RowCache, "clear", watched)
    tokens(model, batch_size=3)
    left = [bool(tensor.any()) for tensor in caches[-1]._tensors.values()]
    tokens(model, batch_size=3)
    assert caches[-1] is caches[-2]
    assert left == [True] * len(left)
    clear(caches[-1])
    assert not any(tensor.any() for tensor in caches[-1]._tensors.values())


@pytest.mark.skipif(sys.platform != "linux", reason="reads Linux's count of pages")
def test_a_long_cache_takes_memory_where_it_is_written_to() -> None:
    def resident() -> int:
        return int(Path("/proc/self/statm").read_text().split()[1]) * mmap.PAGESIZE

    cache, before = RowCache(4, 100_000), resident()
    cache.place(torch.arange(4), torch.zeros(4, dtype=torch.long), 1)
    states = torch.ones(1, 8, 4, 64)
    keys, _ = cache.update(states, states, 0)
    assert keys.untyped_storage().nbytes() == 4 * 8 * 100_000 * 64 * 4
    assert resident() - before < 50_000_000
