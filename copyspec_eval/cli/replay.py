"""Count a drafter's forwards on recorded answers, with no model.

For greedy decoding the recorded answer decides which draft tokens are accepted, so the counts are
exactly those of a real run.
"""

from collections import abc
from dataclasses import replace

from copyspec_eval.decoding.sequence import Sequence
from copyspec_eval.decoding.stopping import StopRule
from copyspec_eval.drafters.base import Drafter
from copyspec_eval.reports.earlier_runs import Trace
from copyspec_eval.types import TurnCounts

_BUDGET = 1024  # tokens that a request usually allows, which bound a draft; answers end earlier


def replay_turn(
    trace: Trace,
    drafter: Drafter,
    longest: int,
    threshold: float,
    earlier: abc.Sequence[abc.Sequence[int]] = (),
) -> TurnCounts:
    """Run the decoding loop on `trace`; the prefill counts as one forward, even with a draft."""
    num_tokens = len(trace.answer_ids)
    stop_rule = StopRule(max(_BUDGET, num_tokens), length=num_tokens)
    sequence = Sequence(trace.prompt_ids, stop_rule, earlier=earlier)
    sequence.start(drafter)
    # A draft may run past the end, where -1 stands for "nothing follows" and equals no token.
    padded = (*trace.answer_ids, -1)

    def choose(_: int) -> int:
        return next(continuation)

    while sequence.finish_reason is None:
        # Read once for each token on the way, whichever branch it is on.
        continuation = iter(padded[len(sequence.output_ids) :])
        sequence.commit(sequence.propose(longest, threshold), choose)
    # A trace does not say what ended it.
    return replace(sequence.counts(), finish_reason=None, num_looped_tokens=None)
