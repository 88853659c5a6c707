"""Paired decoding: both arms, in turn, with the same tokens."""

import math
from functools import partial
from itertools import pairwise
from time import perf_counter
from typing import Any

import pytest
import torch
from asking import asked, sampling
from changed_steps import put_in_place
from doubles import RecordingChooser
from paired_answers import BUDGET, copying, engine_of, pairs_of
from tiny_models import prompts, tiny_model
from transformers import RepetitionPenaltyLogitsProcessor, TemperatureLogitsWarper
from ways import EXACT_WAYS, WAYS

from copyspec_eval.decoding.differences import NOISE_WINDOW
from copyspec_eval.decoding.forward import forward
from copyspec_eval.decoding.given import read_again
from copyspec_eval.decoding.sequence import Sequence
from copyspec_eval.decoding.stopping import StopRule
from copyspec_eval.drafters.base import Drafter, NoDrafter
from copyspec_eval.drafters.registry import drafter_factory


@pytest.mark.parametrize("batch_size", [1, 4])
@pytest.mark.parametrize(
    ("drafter", "exact"),
    [*((name, False) for name in WAYS), *((name, True) for name in EXACT_WAYS)],
)
def test_every_drafter_is_as_its_baseline(drafter: str, exact: bool, batch_size: int) -> None:
    model = tiny_model("qwen2")
    maker = drafter_factory(WAYS[drafter])
    alone = engine_of(model, NoDrafter).generate(asked(prompts(), BUDGET))
    started = perf_counter()
    actual = pairs_of(model, maker, exact, batch_size)
    elapsed = perf_counter() - started
    both = [answer.counts for pair in actual for answer in (pair.drafted, pair.baseline)]
    assert 0 < sum(counts.seconds or math.inf for counts in both) <= elapsed
    for pair, wanted in zip(actual, alone, strict=True):
        assert pair.agreement == "identical"
        plain = pair.baseline
        assert pair.drafted.token_ids == plain.token_ids == wanted.token_ids
        assert plain.counts.num_forwards == len(plain.token_ids), "one token counts of a forward"
        assert plain.batch_size == batch_size


@pytest.mark.parametrize(
    "processor", [RepetitionPenaltyLogitsProcessor(1.3), TemperatureLogitsWarper(2.0)]
)
def test_both_arms_draw_the_same_tokens_after_the_same_processors(processor: Any) -> None:
    draw = partial(sampling, processor, seed=5)
    actual = pairs_of(tiny_model("llama"), copying(), make_chooser=draw)
    assert {pair.agreement for pair in actual} == {"identical"}
    assert len({pair.drafted.token_ids for pair in actual}) == len(actual)


def test_arms_take_turns_and_the_baseline_is_fed_a_token(monkeypatch: pytest.MonkeyPatch) -> None:
    log: list[object] = []

    def watched(model: Any, cache: Any, parts: Any, *args: Any) -> Any:
        log.append(tuple(len(part.token_ids) for part in parts))
        return forward(model, cache, parts, *args)

    def drafter() -> Drafter:
        log.append("draft")
        return copying()()

    put_in_place(monkeypatch, watched)
    pairs_of(tiny_model("qwen2"), drafter, batch_size=2, asked=[(3, 4, 5)] * 16)
    assert {*log} == {"draft", (16, 16)}, "at a fixed width, the baseline's steps have it, too"
    begun = [index for index, each in enumerate(log) if each == "draft"][::2]
    steps = [end - start - 2 for start, end in pairwise([*begun, len(log)])]
    drafted, plain = steps[0], BUDGET - 1
    assert drafted < plain
    # Two groups of four batches: AB, BA. Within a group, rows are refilled.
    assert steps == [*[drafted] * 3, drafted + 8 * plain, *[drafted] * 4]


@pytest.mark.parametrize("length", [0, 1, NOISE_WINDOW - 1, NOISE_WINDOW, NOISE_WINDOW + 17])
@pytest.mark.parametrize("batch_size", [1, 3])
def test_reading_an_answer_again_gives_the_bits_that_chose_it(length: int, batch_size: int) -> None:
    model = tiny_model("qwen2", torch.bfloat16)
    chooser = RecordingChooser()
    sequence = Sequence(prompts()[1], StopRule(100), chooser)
    wide = engine_of(model, copying(), batch_size=batch_size)
    [answer] = wide.generate([sequence])
    read = read_again(wide, sequence, answer.token_ids[:length], NOISE_WINDOW)
    assert len(read) == min(NOISE_WINDOW, length + 1)
    for back, logits in enumerate(reversed(read)):
        observed = chooser.logits[len(sequence.prompt_ids) + length - back]
        assert torch.equal(logits, observed.float())
