"""The paper's combination on real answers: copy where something matches, else a draft model."""

import random
from pathlib import Path
from typing import Any

import pytest
from asking import asked, engine, model_from
from benchmarks.forced import ForcedModel
from transformers import Qwen2Config

from copyspec_eval.decoding.draft_model import DraftModel
from copyspec_eval.reports.earlier_runs import Trace, read_traces
from copyspec_eval.types import DraftOptions

VOCABULARY = 151_936
WRONG = 0.3
"""Share of the tokens at which the draft model proposes another one than the target."""


def very_small_model(seed: int) -> Any:
    shape: dict[str, Any] = {"num_hidden_layers": 1, "num_attention_heads": 2, "eos_token_id": None}
    shape |= {"vocab_size": VOCABULARY, "hidden_size": 8, "intermediate_size": 8}
    return model_from(Qwen2Config(**shape, num_key_value_heads=1), std=0.02 + seed / 100)


@pytest.fixture(scope="module")
def traces(data_dir: Path) -> list[Trace]:
    actual = [
        trace
        for trace in read_traces(data_dir / "traces" / "mt_redundant__qwen2.5-7b.jsonl")
        if trace.turn == 2 and len(trace.prompt_ids) < 600 and 50 < len(trace.answer_ids) < 250
    ]
    return actual[::2]


@pytest.mark.parametrize("copying", [pytest.param("copyspec", marks=pytest.mark.slow), "suffix"])
def test_copying_and_a_draft_model_together_need_fewer_forwards_than_either(
    copying: str, traces: list[Trace]
) -> None:
    assert len(traces) >= 10
    target, smaller = map(very_small_model, range(2))
    source = random.Random(0)

    def noisy(answer_ids: tuple[int, ...]) -> list[int]:
        return [source.randrange(VOCABULARY) if source.random() < WRONG else t for t in answer_ids]

    ForcedModel(target, [(*trace.prompt_ids, *trace.answer_ids) for trace in traces])
    ForcedModel(smaller, [(*t.prompt_ids, *noisy(t.answer_ids)) for t in traces])

    def tokens_per_forward(drafter: str, draft_model: DraftModel | None) -> float:
        made = engine(target, DraftOptions(drafter), None, 15, draft_model=draft_model)
        num_forwards = 0
        for trace in traces:
            [answer] = made.generate(asked([trace.prompt_ids], len(trace.answer_ids)))
            assert answer.token_ids == trace.answer_ids
            num_forwards += answer.counts.num_forwards or 0
        return sum(len(trace.answer_ids) for trace in traces) / num_forwards

    draft_model = DraftModel(smaller, delta=5)
    copied, drafted = tokens_per_forward(copying, None), tokens_per_forward("none", draft_model)
    both = tokens_per_forward(copying, draft_model)
    assert both > max(copied, drafted)
