"""Programs as answers to GSM8K problems: right if the first number printed is the gold number."""

import re
import textwrap

from copyspec_eval.sandbox.commands import Outcome

RIGHT = "right"

_BLOCK = re.compile(r"^[ \t]*```python[ \t]*\n(.*?)(?:^[ \t]*```|\Z)", re.DOTALL | re.MULTILINE)
_NUMBER = re.compile(
    r"-?(?:[0-9]{1,3}(?:,[0-9]{3})+(?![0-9])|[0-9]+)(?:\.[0-9]+)?(?:[eE][-+]?[0-9]+)?"
    r"|-?\.[0-9]+"
)
_RELATIVE_TOLERANCE = 1e-6


def extract_program(answer: str) -> str | None:
    r"""The last block fenced as python that contains `print`, or None; it may have no end.

    >>> extract_program("So:\n```python\nprint(1)\n```\nThat was it.\n```python\nx = 2\n```")
    'print(1)\n'
    """
    blocks = [block for block in _BLOCK.findall(answer) if "print" in block]
    return textwrap.dedent(blocks[-1]) if blocks else None


def gold_number(answer: str) -> float:
    """The number after the last `####` of a reference answer; `ValueError` without one.

    >>> gold_number("She has 2 * 600 = 1200. #### 1,200")
    1200.0
    """
    _, mark, number = answer.rpartition("####")
    if not mark:
        raise ValueError("no ####")
    return float(number.replace(",", ""))


def first_number(output: str) -> float | None:
    """The first number in `output`, which may have commas between thousands, or None.

    >>> first_number("Total: $1,234.50 in 3 days"), first_number("none")
    (1234.5, None)
    """
    match = _NUMBER.search(output)
    return float(match.group().replace(",", "")) if match else None


def verdict(outcome: Outcome | None, gold: float) -> str:
    """`RIGHT`, or why not; only a program (an `outcome`) that ends with exit code 0 counts.

    Its first number must equal `gold`, to a relative tolerance of 1e-6.
    """
    if outcome is None:
        return "no program"
    if outcome.status != "ok":
        return outcome.reason
    if (number := first_number(outcome.stdout)) is None:
        return "no number printed"
    return RIGHT if abs(number - gold) <= _RELATIVE_TOLERANCE * abs(gold) else "wrong number"
