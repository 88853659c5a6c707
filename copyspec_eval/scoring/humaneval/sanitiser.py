"""Finds the programs in answers by EvalPlus; `scores` runs this module in a sandbox.

Standard input is a JSON list of answers, each with its problem's `entry_point`. Standard output is
one JSON string per line, in their order.
"""

from __future__ import annotations

import json
import sys


def main() -> None:
    """Read all answers and write their programs."""
    from evalplus.sanitize import sanitize

    for raw, entry_point in json.load(sys.stdin):
        try:
            program = str(sanitize(raw, entry_point))
        except (ValueError, RecursionError):  # null bytes and lone surrogates; deep nesting
            program = raw
        print(json.dumps(program), flush=True)
