"""The drafters by name: a new one is a file beside this and a line in `DRAFTERS`."""

from __future__ import annotations

from collections.abc import Callable

from copyspec_eval.drafters.base import Drafter, NoDrafter
from copyspec_eval.drafters.copyspec import CopySpecDrafter
from copyspec_eval.errors import unknown_option
from copyspec_eval.types import DraftOptions

DrafterFactory = Callable[[], Drafter]
"""Makes the drafter of one request."""

DRAFTERS: dict[str, Callable[[DraftOptions], Drafter]] = {
    "none": lambda options: NoDrafter(),
    "copyspec": lambda options: CopySpecDrafter(options.gamma, options.num_draft_tokens),
}


def drafter_factory(options: DraftOptions) -> DrafterFactory:
    """A factory of the drafter that `options` names, one drafter per request.

    Raises:
        OptionError: no drafter has that name; the message lists those that exist.
    """
    make = DRAFTERS.get(options.drafter)
    if make is None:
        raise unknown_option("drafter", options.drafter, DRAFTERS)
    return lambda: make(options)
