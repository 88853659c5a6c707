"""Models and tokenizers by their names; what fails becomes one line."""

from collections.abc import Iterator
from contextlib import contextmanager

from copyspec_eval.errors import CopySpecError, ModelError

_LONGEST_LINE = 200  # characters of an error of a library


@contextmanager
def loading(option: str, value: object, remedy: str) -> Iterator[None]:
    """Turn whatever fails within into a ModelError of one line."""
    try:
        yield
    except CopySpecError:
        raise
    except Exception as error:
        reason = f"{option}={value!r} cannot be loaded: {first_line(error)}"
        raise ModelError(f"{reason} ({remedy})") from error


def first_line(error: Exception) -> str:
    """The error's first line; of a long one, as torch's can be, the first sentence."""
    text = str(error).strip() or type(error).__name__
    line = " ".join(text.splitlines()[0].split())
    return line if len(line) <= _LONGEST_LINE else line.partition(". ")[0][:_LONGEST_LINE]
