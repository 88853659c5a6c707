"""The `copyspec-eval` command: the only code that parses argv, prints and sets exit codes."""

from __future__ import annotations

from collections.abc import Sequence

from copyspec_eval.cli import commands
from copyspec_eval.cli.parser import parser
from copyspec_eval.errors import CopySpecError, print_error


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code, or 1 after a one-line error.

    Wrong usage exits with 2, as argparse does.
    """
    arguments = parser().parse_args(argv)
    try:
        code: int | None = getattr(commands, arguments.command)(arguments)
    except (CopySpecError, OSError) as error:
        print_error(error)
        return 1
    return code or 0
