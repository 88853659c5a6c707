"""Tables as a terminal shows them."""

import re


def printed_table(text: str) -> list[dict[str, str]]:
    """The first table's rows by heading: its columns are as wide as the dashes below them."""
    lines = text.splitlines()
    [rule, *_] = [place for place, line in enumerate(lines) if re.fullmatch(r"-+(  -+)+", line)]
    columns = [slice(*dashes.span()) for dashes in re.finditer("-+", lines[rule])]
    end = lines.index("", rule) if "" in lines[rule:] else len(lines)
    body = [line for line in lines[rule + 1 : end] if not line.startswith("note: ")]
    headers, *rows = ([line[each].strip() for each in columns] for line in [lines[rule - 1], *body])
    return [dict(zip(headers, row, strict=True)) for row in rows]
