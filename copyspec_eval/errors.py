"""Errors that a user can mend, each one line that names the value and the remedy."""

import difflib
import functools
import json
import sys
import traceback
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from types import TracebackType

from copyspec_eval.redaction import masked


class CopySpecError(Exception):
    """Base of every error that a user can mend; its text is one line."""


class OptionError(CopySpecError):
    """An unknown option, or a value that the option does not take."""


class ModelError(CopySpecError):
    """A model that cannot be decoded with the engine's cache and attention."""


class RequestError(CopySpecError):
    """A request that cannot be answered: no room for it, or a setting that is not supported."""


class DataError(CopySpecError):
    """A data file that is missing, empty or malformed."""


class SandboxError(CopySpecError):
    """Programs cannot be run or scored on this machine: no fault of theirs."""


@contextmanager
def needing(package: str, what: str, extra: str) -> Iterator[None]:
    """Within it, an import that fails is an OptionError with the line that installs the extra."""
    try:
        yield
    except ImportError as error:
        remedy = f"pip install 'copyspec-eval[{extra}]'"
        raise OptionError(f"{what} needs {package} ({error}); {remedy}") from error


def unknown_option(kind: str, name: str, existing: Iterable[str]) -> OptionError:
    """An OptionError with the name that was probably meant, else with all that exist.

    >>> str(unknown_option("drafter", "copyspek", ["copyspec", "none"]))
    "unknown drafter 'copyspek' (did you mean 'copyspec'?)"
    """
    names = sorted(existing)
    remedy = suggestion(name, names) or f"; known: {', '.join(names)}"
    return OptionError(f"unknown {kind} {name!r}{remedy}")


def suggestion(name: str, existing: Iterable[str]) -> str:
    """` (did you mean 'NAME'?)` with the closest of the names; "" if none is close."""
    close = difflib.get_close_matches(name, existing, n=1)
    return f" (did you mean {close[0]!r}?)" if close else ""


def printable(text: str) -> str:
    """`text` without secrets, on one line, and harmless to a terminal.

    >>> print(printable("a\\nb \\x1b[1m ä"))
    a\\nb \\u001b[1m ä
    """
    # Escaped as in JSON, so that JSON stays what it was.
    return "".join(each if each.isprintable() else json.dumps(each)[1:-1] for each in masked(text))


def print_error(error: CopySpecError | OSError) -> None:
    text = str(error)
    if isinstance(error, OSError) and error.filename is not None:
        text = f"{error.filename}: {error.strerror}; check the path and its permissions"
    print(f"copyspec-eval: error: {printable(text)}", file=sys.stderr)


@functools.cache
def report_errors_in_one_line() -> None:
    """Have the interpreter print an uncaught CopySpecError in a line; lm-eval lets it through."""
    previous = sys.excepthook

    def hook(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        if isinstance(error, CopySpecError):
            print_error(error)
            return
        text = "".join(traceback.format_exception(kind, error, trace))
        if (clean := masked(text)) == text:
            previous(kind, error, trace)
        else:
            print(clean, end="", file=sys.stderr)

    sys.excepthook = hook
