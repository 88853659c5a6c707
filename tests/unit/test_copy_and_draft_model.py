"""The paper's combination on real answers: copy where something matches, else a draft model."""

import random
from pathlib import Path
from typing import Any

import pytest
import torch
from benchmarks.forced import ForcedModel
from transformers import AutoModelForCausalLM, LogitsProcessorList, Qwen2Config

from copyspec_eval.decoding.choosing import TokenChooser
from copyspec_eval.decoding.draft_model import DraftModel
from copyspec_eval.decoding.engine import Engine
from copyspec_eval.decoding.sequence import Sequence
from copyspec_eval.decoding.stopping import StopRule
from copyspec_eval.drafters.registry import drafter_factory
from copyspec_eval.reports.earlier_runs import Trace, read_traces
from copyspec_eval.types import DraftOptions

VOCABULARY = 151_936
WRONG = 0.3
"""Share of the tokens at which the draft model proposes another one than the target."""


def very_small_model() -> Any:
    config = Qwen2Config(
        vocab_size=VOCABULARY,
        hidden_size=8,
        intermediate_size=8,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=1,
        eos_token_id=None,
    )
    auto: Any = AutoModelForCausalLM
    return auto.from_config(config).eval()


@pytest.fixture(scope="module")
def traces(data_dir: Path) -> list[Trace]:
    """Real second turns that are not long."""
    actual = [
        trace
        for trace in read_traces(data_dir / "traces" / "mt_redundant__qwen2.5-7b.jsonl")
        if trace.turn == 2 and len(trace.prompt_ids) < 600 and 50 < len(trace.answer_ids) < 250
    ]
    return actual[::2]


def noisy(answer_ids: tuple[int, ...], source: random.Random) -> list[int]:
    return [
        source.randrange(VOCABULARY) if source.random() < WRONG else token for token in answer_ids
    ]


@pytest.mark.parametrize("copying", [pytest.param("copyspec", marks=pytest.mark.slow), "suffix"])
def test_copying_and_a_draft_model_together_need_fewer_forwards_than_either(
    copying: str, traces: list[Trace]
) -> None:
    assert len(traces) >= 10
    torch.manual_seed(0)
    target, smaller = very_small_model(), very_small_model()
    source = random.Random(0)
    ForcedModel(target, [(*trace.prompt_ids, *trace.answer_ids) for trace in traces])
    ForcedModel(smaller, [(*t.prompt_ids, *noisy(t.answer_ids, source)) for t in traces])

    def tokens_per_forward(drafter: str, draft_model: DraftModel | None) -> float:
        engine = Engine(
            target,
            drafter_factory(DraftOptions(drafter)),
            num_draft_tokens=15,
            exact=None,
            draft_model=draft_model,
        )
        num_forwards = 0
        for trace in traces:
            chooser = TokenChooser(LogitsProcessorList(), do_sample=False)
            rule = StopRule(len(trace.answer_ids))
            [made] = engine.generate([Sequence(trace.prompt_ids, rule, chooser)])
            assert made.token_ids == trace.answer_ids
            num_forwards += made.counts.num_forwards or 0
        return sum(len(trace.answer_ids) for trace in traces) / num_forwards

    copied = tokens_per_forward(copying, None)
    drafted = tokens_per_forward("none", DraftModel(smaller, delta=5))
    both = tokens_per_forward(copying, DraftModel(smaller, delta=5))
    print(f"{copying} {copied:.2f}, draft model {drafted:.2f}, both {both:.2f} tokens per forward")
    assert both > max(copied, drafted)
