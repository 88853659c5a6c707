"""Every way of drafting that a user can ask for: each drafter with each set of its switches."""

import itertools

from copyspec_eval.drafters.registry import DRAFTERS
from copyspec_eval.types import DraftOptions

WAYS: dict[str, DraftOptions] = {
    "+".join((name, *on)): DraftOptions(name, gamma=1, store="store" in on, tree="tree" in on)
    for name, kind in DRAFTERS.items()
    for count in range(1 + len(kind.switches))
    for on in itertools.combinations(sorted(kind.switches), count)
}
"""By name; the paper's rule matches a single token, so that it copies often."""

EXACT_WAYS = {name: options for name, options in WAYS.items() if not options.tree}
"""Those of exact mode."""
