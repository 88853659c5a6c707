"""Tables in Markdown, for files and for terminals: the only place that lays them out."""

from __future__ import annotations

import re
from collections.abc import Sequence

from tabulate import tabulate

_NUMBER = re.compile(r"[-+]?[\d.,]+(e[-+]?\d+)?%?( ±[\d.,]+%?)?")
_ESCAPES = str.maketrans({"|": r"\|", "`": r"\`", "<": "&lt;", "\n": " ", "\r": " "})


def markdown(headers: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    r"""A Markdown table whose cells show what they hold, whatever that is.

    >>> print(markdown(["name", "n"], [["a|b", 1]]), end="")
    | name   |   n |
    |:-------|----:|
    | a\|b   |   1 |
    """
    return terminal(headers, [[str(cell).translate(_ESCAPES) for cell in row] for row in rows])


def terminal(headers: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """The same layout with nothing escaped; numbers, as far as a column has nothing else, right."""
    cells = [["" if cell is None else str(cell) for cell in row] for row in rows]
    columns = zip(*cells, strict=True) if cells else ()
    numeric = [all(not cell or _NUMBER.fullmatch(cell) for cell in column) for column in columns]
    align = ["right" if right else "left" for right in numeric]
    table = tabulate(cells, headers, "pipe", disable_numparse=True, colalign=align or None)
    return f"{table}\n"


def without_empty_columns(
    headers: Sequence[str], rows: Sequence[Sequence[object]]
) -> tuple[list[str], list[list[object]]]:
    """The table less the columns in which every cell is empty."""
    kept = [index for index in range(len(headers)) if any(row[index] != "" for row in rows)]
    return [headers[index] for index in kept], [[row[index] for index in kept] for row in rows]


def number(value: float | None, form: str) -> str:
    """`value` in a format, or nothing for None and NaN."""
    return "" if value is None or value != value else format(value, form)
