"""The levels of containment that work on this machine, best first, and tests at each of them."""

import pytest

from copyspec_eval.sandbox import programs
from copyspec_eval.sandbox.commands import LEVELS

WORKING = [level for level in LEVELS if programs.trial(level).status == "ok"]
EVERY_LEVEL = pytest.mark.parametrize("level", WORKING, ids=lambda level: level.name)
