"""The table of `results/CONTAINMENT.md`, and its summary in docs/tasks.md."""

from collections.abc import Mapping

from containing.programs import DONE, LEVELS, REFUSED, Program

_UNTESTED = "not tested"


def render(programs: list[Program], outcomes: Mapping[str, Mapping[str, str]], users: str) -> str:
    """The whole table.

    Args:
        programs: all of them.
        outcomes: by level, what became of each; without the levels that do not work here.
        users: for whom they were run.
    """
    columns = {level: outcomes.get(level, {}) for level in LEVELS}
    return "\n".join(
        [
            "# Containment",
            "",
            "What hostile programs achieve in the sandbox, at each level of containment. They are",
            f"in `tests/programs/hostile`; written by `scripts/containment`, run as {users}.",
            f"`{DONE}` means that a program did some of what it tries, for at least one of them.",
            "",
            "`tests/unit/test_system_calls.py` also makes every system call by number, up to 599.",
            "At no level does the kernel answer one that is not on the list of what Python needs.",
            "",
            f"| program | tries | {' | '.join(LEVELS)} |",
            "| --- " * (2 + len(LEVELS)) + "|",
            *(
                f"| {program.name} | {program.tries} | "
                + " | ".join(column.get(program.name, _UNTESTED) for column in columns.values())
                + " |"
                for program in programs
            ),
            "",
        ]
    )


def cells(text: str) -> dict[str, dict[str, str]]:
    """Of a rendered table, what became of each program at each level that was tested."""
    rows = [line.strip("| ").split(" | ") for line in text.splitlines() if line.startswith("| ")]
    return {
        name: {
            level: cell for level, cell in zip(LEVELS, of_levels, strict=True) if cell != _UNTESTED
        }
        for name, _, *of_levels in rows[2:]
    }


def summary(text: str) -> list[str]:
    """Lines of a table of how many programs of each kind each level refuses."""
    by_kind: dict[str, list[dict[str, str]]] = {}
    for name, of_levels in cells(text).items():
        by_kind.setdefault(name.partition("/")[0], []).append(of_levels)
    lines = [f"| {' | '.join(('reaches for', *LEVELS))} |", "| --- " * (1 + len(LEVELS)) + "|"]
    for kind, rows in by_kind.items():
        refused = [sum(row.get(level) == REFUSED for row in rows) for level in LEVELS]
        lines.append(f"| {kind} | {' | '.join(f'{count} of {len(rows)}' for count in refused)} |")
    return lines
