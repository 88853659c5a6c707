"""What a step costs is measured at every width that a draft may need."""

from tiny_models import tiny_model
from transformers import LogitsProcessorList

from copyspec_eval.decoding.choosing import TokenChooser
from copyspec_eval.decoding.engine import Engine
from copyspec_eval.decoding.sequence import Sequence
from copyspec_eval.decoding.step_costs import step_costs
from copyspec_eval.decoding.stopping import StopRule
from copyspec_eval.drafters.registry import drafter_factory
from copyspec_eval.drafters.thresholds import acceptance_thresholds
from copyspec_eval.types import DraftOptions


def costs_of(model_type: str, batch_size: int, num_draft_tokens: int) -> dict[int, float]:
    return step_costs(tiny_model(model_type), batch_size, num_draft_tokens, None, "copyspec")


def test_every_doubled_number_and_the_most_are_measured() -> None:
    """In a batch, of the draft tokens of all rows."""
    wanted = {1: [0, 1, 3, 7, 15, 20], 3: [0, 1, 3, 7, 15, 31, 60]}
    for batch_size, counts in wanted.items():
        costs = costs_of("gemma2", batch_size, num_draft_tokens=20)
        assert list(costs) == counts
        assert costs[0] > 0
        assert len(acceptance_thresholds(costs)) == counts[-1]


def test_steps_may_be_wider_than_the_context_is_long() -> None:
    """The positions of a gpt2 end before that."""
    costs = costs_of("gpt2", batch_size=1, num_draft_tokens=600)
    assert list(costs)[-2:] == [127, 600]
    assert len(acceptance_thresholds(costs)) == 600


def test_costs_of_longer_drafts_lengthen_none() -> None:
    """Where costs go on behind the longest draft."""
    model, prompt = tiny_model("qwen2"), [5, 6, 7] * 20
    engine = Engine(
        model,
        drafter_factory(DraftOptions("suffix")),
        num_draft_tokens=8,
        exact=None,
        step_costs={0: 1.0, 64: 1.0},
    )
    chooser = TokenChooser(LogitsProcessorList(), do_sample=False)
    [made] = engine.generate([Sequence(tuple(prompt), StopRule(30), chooser)])
    assert max(attempt.num_drafted for attempt in made.attempts) == 8
