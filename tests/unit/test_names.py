"""Words that leave a reader guessing are not names: they say nothing of what they hold."""

import tokenize
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]
PROGRAMS = {*(REPOSITORY / "tests" / "programs").rglob("*.py")}
"""Samples of what models write."""
BANNED = {*("own", "of", "kept", "told", "said", "heard", "found")}
BANNED |= {*("seen", "apart", "beside", "tight", "filling", "worths")}


def test_no_name_is_a_banned_word():
    places = []
    for folder in ("copyspec_eval", "scripts", "tests"):
        for path in sorted({*(REPOSITORY / folder).rglob("*.py")} - PROGRAMS):
            with path.open("rb") as source:
                tokens = list(tokenize.tokenize(source.readline))
            places += [
                f"{path.relative_to(REPOSITORY)}:{token.start[0]}: {token.string}"
                for token in tokens
                if token.type == tokenize.NAME and token.string in BANNED
            ]
    assert places == []
