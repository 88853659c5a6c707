"""Steps of a fixed width: one shape, inputs filled in place, and so one graph that is compiled."""

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from asking import SUFFIX, asked, engine
from byte_model import loaded
from tiny_models import prompts, quick, tiny_model
from torch._dynamo import lookup_backend

from copyspec_eval import generate
from copyspec_eval.decoding import fixed_steps
from copyspec_eval.decoding.draft_model import DraftModel
from copyspec_eval.decoding.exactness import exact_mode
from copyspec_eval.decoding.paired import PairedAnswer, PairedEngine
from copyspec_eval.errors import ModelError, OptionError
from copyspec_eval.types import DraftOptions, ExactMode

pytestmark = pytest.mark.usefixtures("torchs_kernels")

COMPILER = torch.compile
COMPILED = ExactMode(16, "compiled")
DRAFTING = {"suffix": SUFFIX, "copyspec": DraftOptions("copyspec", gamma=1)}
DRAFTING["draft model"] = DraftOptions("none")
BUDGET = 20  # tokens


@pytest.fixture(autouse=True)
def graphs(monkeypatch: pytest.MonkeyPatch) -> Iterator[list["Graph"]]:
    """A compiler that traces all and leaves operations as they are; its graphs are listed."""
    compiled: list[Graph] = []

    def backend(module: Any, inputs: list[Any]) -> Any:
        compiled.append(Graph(module, lookup_backend("aot_eager")(module, inputs)))
        return compiled[-1]

    def compile(module: Any, mode: str, **options: Any) -> Any:
        assert mode == "reduce-overhead"
        return whole(module, backend=backend, **options)

    # transformers registers a class of models when it first runs, which is a warm-up's affair.
    tiny_model("llama")(torch.tensor([[1]]))
    whole = torch.compile
    monkeypatch.setattr(torch, "compile", compile)
    monkeypatch.setattr(fixed_steps, "_shared", {})
    yield compiled
    torch.compiler.reset()


class Graph:
    """Runs a graph; notes what a CUDA graph would have to copy, and where its inputs are."""

    noise, is_stale = 0.0, False

    def __init__(self, module: Any, runs: Callable[..., Any]) -> None:
        self._runs = runs
        self.copied = [
            node.name
            for node in module.graph.nodes
            if node.op == "placeholder"
            and isinstance(node.meta["example_value"], torch.Tensor)
            and "_dynamo_static_input_type" not in node.meta.get("tensor_dict", {})
        ]
        self.num_steps = 0
        self.places: set[tuple[tuple[int, torch.Size], ...]] = set()

    def __call__(self, *inputs: Any) -> Any:
        tensors = [each for each in inputs if isinstance(each, torch.Tensor)]
        self.places.add(tuple((each.data_ptr(), each.shape) for each in tensors))
        self.num_steps += 1
        outputs = self._runs(*inputs)
        if self.is_stale:
            outputs = self.first = getattr(self, "first", outputs)
        return tuple(each + self.noise * self.num_steps for each in outputs)


def answers(model: Any, mode: ExactMode, drafting: str, batch_size: int) -> list[PairedAnswer]:
    small = DraftModel(tiny_model("llama"), 3) if drafting == "draft model" else None
    drafted = engine(model, DRAFTING[drafting], mode, batch_size=batch_size, draft_model=small)
    actual: dict[int, list[PairedAnswer]] = {}
    PairedEngine(model, [drafted]).generate(asked(prompts(), BUDGET), actual.__setitem__)
    return [answer for index in sorted(actual) for answer in actual[index]]


@pytest.mark.parametrize("batch_size", [1, 4])
@pytest.mark.parametrize("family", quick("qwen2", "gemma2", "gpt_oss"))
def test_whole_paired_runs_are_one_graph_with_the_tokens_of_steps_that_are_not_compiled(
    family: str, batch_size: int, graphs: list["Graph"]
) -> None:
    """Of all drafters: what breaks a graph, or needs another one, is an error."""
    model, num_saved = tiny_model(family), 0
    for drafting in DRAFTING:
        plain = answers(model, ExactMode(16), drafting, batch_size)
        actual = answers(model, COMPILED, drafting, batch_size)
        tokens = [answer.generation.token_ids for answer in actual]
        assert tokens == [answer.generation.token_ids for answer in plain]
        assert tokens == [answer.baseline.token_ids for answer in actual]
        num_saved += sum(BUDGET - (answer.generation.counts.num_forwards or 0) for answer in actual)
    assert num_saved > 0
    [graph] = graphs
    assert graph.num_steps > BUDGET
    assert len(graph.places) == 1, "inputs stay where they are, in their shapes"
    assert graph.copied == []


@pytest.mark.parametrize("trouble", ["", "raises", "differs", "is stale"])
def test_what_cannot_be_compiled_or_differs_is_not_compiled(
    trouble: str,
    byte_model: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    def raises(*args: Any, **options: Any) -> Any:
        raise RuntimeError("no compiler here\nand a long story")

    caplog.set_level("INFO", "lm_eval.copyspec")
    if trouble == "raises":
        monkeypatch.setattr(torch, "compile", raises)
    monkeypatch.setattr(Graph, "noise", 1e-4 * (trouble == "differs"))
    monkeypatch.setattr(Graph, "is_stale", trouble == "is stale")
    asked_for: Any = {"longest": 10, "needed": 0, "batch_size": 2, "compiled": True}
    mode = exact_mode(*loaded(byte_model), **asked_for)
    assert mode == ExactMode(16, "eager" if trouble else "compiled")
    lines = [line for line in caplog.messages if "compiled" in line and "mode gives" not in line]
    why = {"raises": "not compiled: no compiler here", "differs": "in the compiled step"}
    why["is stale"] = "not compiled: it gives other logits"
    assert [line.count(why[trouble]) for line in lines] == ([1] if trouble else [])


def test_a_step_that_fails_later_is_an_error_of_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(graph: Graph, *inputs: Any) -> Any:
        raise RuntimeError("out of something\nand a long story")

    monkeypatch.setattr(Graph, "__call__", fails)
    why = r"^a step cannot be compiled \(RuntimeError: out of something\); pass compile=False$"
    with pytest.raises(ModelError, match=why):
        answers(tiny_model("qwen2"), COMPILED, "suffix", 1)


@pytest.mark.parametrize("exact", [True, False])
def test_compile_without_effect_is_refused(
    exact: bool, byte_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("copyspec_eval.decoding.kernels.is_available", lambda: True)
    why = "has no effect on our kernels" if exact else "needs steps of one width"
    with pytest.raises(OptionError, match=f"compile=True {why}"):
        generate(*loaded(byte_model), "hello", exact=exact, compile=True)


@pytest.mark.slow
def test_torchs_own_compiler_gives_the_same_answers(
    byte_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch, "compile", COMPILER)
    ask = partial(generate, *loaded(byte_model), "to be or not to be or not", max_new_tokens=20)
    plain, compiled, baseline = (
        ask(compile=how, drafter=drafter)[0]
        for how, drafter in ((False, "suffix"), (True, "suffix"), (True, "none"))
    )
    assert compiled.token_ids == baseline.token_ids
    assert len(plain.token_ids) == 20
