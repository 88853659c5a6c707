"""Steps of a fixed width that are captured as CUDA graphs, which are simulated here."""

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from asking import SUFFIX, asked, engine, greedy, model_from
from byte_model import loaded
from simulated_graph import SimulatedGraph, simulated_graphs
from tiny_models import prompts, quick, tiny_config, tiny_model

from copyspec_eval.decoding import repeated_steps
from copyspec_eval.decoding.draft_model import DraftModel
from copyspec_eval.decoding.exactness import exact_mode
from copyspec_eval.decoding.prefix_cache import PrefixCache
from copyspec_eval.decoding.row_runner import PREFILL_CHUNK
from copyspec_eval.decoding.sequence import Sequence
from copyspec_eval.decoding.stopping import StopRule
from copyspec_eval.errors import ModelError
from copyspec_eval.pairs.paired import PairedAnswer, PairedEngine
from copyspec_eval.types import DraftOptions, ExactMode, Generation

pytestmark = pytest.mark.usefixtures("torchs_kernels")

DRAFTING = {"suffix": SUFFIX, "copyspec": DraftOptions("copyspec", gamma=1)}
DRAFTING["draft model"] = DraftOptions("none")
EAGER, CAPTURED = ExactMode(16), ExactMode(16, "captured")
BUDGET = 20  # tokens
SLOW = 2  # seconds


@pytest.fixture(autouse=True)
def graphs() -> Iterator[list[SimulatedGraph]]:
    with simulated_graphs() as made:
        yield made


def answers(
    model: Any, mode: ExactMode, batch_size: int = 1, drafting: str = "suffix"
) -> list[PairedAnswer]:
    small = DraftModel(tiny_model("llama"), 3) if drafting == "draft model" else None
    how = DRAFTING[drafting], mode
    drafted = engine(model, *how, batch_size=batch_size, draft_model=small)
    actual: dict[int, list[PairedAnswer]] = {}
    PairedEngine(model, [drafted]).generate(asked(prompts(), BUDGET), actual.__setitem__)
    return [answer for index in sorted(actual) for answer in actual[index]]


def tokens(pairs: list[PairedAnswer]) -> list[tuple[int, ...]]:
    return [pair.generation.token_ids for pair in pairs]


@pytest.mark.parametrize("batch_size", [pytest.param(1, marks=pytest.mark.slow), 4])
@pytest.mark.parametrize("family", quick("qwen2", "gemma2", "gpt_oss"))
def test_whole_paired_runs_replay_two_graphs_with_the_tokens_of_eager_steps(
    family: str, batch_size: int, graphs: list[SimulatedGraph]
) -> None:
    """One for the steps of all drafters, one for prompts of all lengths."""
    model, num_saved = tiny_model(family), 0
    for drafting in DRAFTING:
        actual = answers(model, CAPTURED, batch_size, drafting)
        assert tokens(actual) == tokens(answers(model, EAGER, batch_size, drafting))
        assert tokens(actual) == [pair.baseline.token_ids for pair in actual]
        num_saved += sum(BUDGET - (pair.generation.counts.num_forwards or 0) for pair in actual)
    assert [graph.num_replays > BUDGET for graph in graphs] == [True, True]
    assert num_saved > 0


def test_each_number_of_keys_has_graphs_that_stay(graphs: list[SimulatedGraph]) -> None:
    """Whichever comes first: a graph of few keys is not made again after one of many."""
    model = model_from(tiny_config("qwen2", max_position_embeddings=4096))
    run = engine(model, SUFFIX, CAPTURED)
    plain = engine(model, SUFFIX, EAGER)
    for length, num_graphs in ((30, 2), (1030, 5), (40, 5), (1100, 5), (30, 5)):
        prompt = [1 + index % 50 for index in range(length)]
        [wanted] = plain.generate(asked([prompt], 5))
        [actual] = run.generate(asked([prompt], 5))
        assert actual.token_ids == wanted.token_ids
        assert len(graphs) == num_graphs


def test_prompts_go_on_from_earlier_ones_in_any_row() -> None:
    model = model_from(tiny_config("qwen2", max_position_embeddings=4096))
    run = engine(model, SUFFIX, CAPTURED, batch_size=2, prefix_cache=PrefixCache(10**8))
    plain = engine(model, SUFFIX, EAGER, batch_size=2)
    for length in (270, 600):
        first, second = ([1 + index * step % 50 for index in range(length)] for step in (1, 3))
        for given in ([first, second], [second, first]):
            actual = run.generate(asked(given, 5))
            wanted = plain.generate(asked(given, 5))
            assert [each.token_ids for each in actual] == [each.token_ids for each in wanted]
    assert [each.counts.num_reused_tokens for each in actual] == [512, 512]


def test_a_prompt_is_read_in_one_way_whatever_its_answer_may_take(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Else its bits would depend on the request for which it was read first."""
    real, extents = repeated_steps.Steps.read, list[list[int]]()

    def noted(steps: Any, model: Any, parts: Any, extent: int) -> Any:
        if len(parts[0].token_ids) == PREFILL_CHUNK and parts[0].start != 1:  # as when captured
            extents[-1].append(extent)
        return real(steps, model, parts, extent)

    monkeypatch.setattr(repeated_steps.Steps, "read", noted)
    model = model_from(tiny_config("qwen2", max_position_embeddings=4096))
    for budget in (5, 1500):
        extents.append([])
        rule = StopRule(budget, length=1)
        engine(model, SUFFIX, CAPTURED).generate([Sequence([1] * 1100, rule, greedy())])
    assert extents == [[1024, 1024, 1024, 1024, 2048]] * 2


def test_graphs_are_made_before_the_clock_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    real = repeated_steps._captured

    def slow(*given: Any) -> Any:
        time.sleep(SLOW)
        return real(*given)

    monkeypatch.setattr(repeated_steps, "_captured", slow)
    for pair in answers(tiny_model("qwen2"), CAPTURED):
        for each in (pair.generation, pair.baseline):
            assert isinstance(each, Generation)
            assert (each.counts.seconds or 0) < SLOW


def test_weights_that_were_moved_are_captured_again(graphs: list[SimulatedGraph]) -> None:
    model = tiny_model("qwen2")
    before = tokens(answers(model, CAPTURED))
    head = model.get_output_embeddings().weight
    head.data = head.data.flip(0).clone()
    after = tokens(answers(model, CAPTURED))
    assert after == tokens(answers(model, EAGER)) != before
    assert len(graphs) == 4


def waits(inputs: Any, model: Any, cache: Any) -> torch.Tensor:
    """As models with experts do whose numbers of tokens the host asks for."""
    int(inputs.step.token_ids[0])
    return LOGITS(inputs, model, cache)


def reads_elsewhere(inputs: Any, step: Any) -> None:
    inputs.step = step


def drifts(graph: SimulatedGraph) -> None:
    """As kernels do whose sums are in no order: the check of a graph may not notice."""
    REPLAY(graph)
    _, _, _, logits = graph._calls[-1]
    logits.add_(1e-4 * (graph.num_replays - 1))


LOGITS, REPLAY = repeated_steps._Inputs.run, SimulatedGraph.replay


@pytest.mark.parametrize(
    ("where", "name", "change", "why"),
    [
        (repeated_steps._Inputs, "run", LOGITS, ""),
        (repeated_steps._Inputs, "run", waits, "operation not permitted when stream is capturing"),
        (repeated_steps._Inputs, "fill", reads_elsewhere, "it gives other logits"),
        (SimulatedGraph, "replay", drifts, "in the captured step"),
    ],
)
def test_what_cannot_be_captured_or_differs_is_not(
    where: Any,
    name: str,
    change: Any,
    why: str,
    byte_model: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """With one line; a graph that reads other memory than its inputs is such a one."""
    caplog.set_level("INFO", "lm_eval.copyspec")
    monkeypatch.setattr(where, name, change)
    asked_for: Any = {"longest": 10, "needed": 0, "batch_size": 2}
    assert exact_mode(*loaded(byte_model), **asked_for) == (EAGER if why else CAPTURED)
    lines = [line for line in caplog.messages if "captured" in line and "mode gives" not in line]
    assert [line.endswith(why) for line in lines] == [True] * bool(why)


def test_a_graph_that_fails_later_is_an_error_of_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(repeated_steps._Inputs, "run", waits)
    why = r"^a step cannot be captured \(RuntimeError: operation not [a-z ]+\); pass exact=False$"
    with pytest.raises(ModelError, match=why):
        answers(tiny_model("qwen2"), CAPTURED)
