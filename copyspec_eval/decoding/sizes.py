"""Sizes of memory as people write them."""

from __future__ import annotations

from accelerate.utils import convert_file_size_to_int

from copyspec_eval.errors import OptionError


def bytes_of(name: str, value: object) -> int:
    """A size in bytes, given as a number of them or such as "2GB".

    Raises:
        OptionError: it is none.
    """
    try:
        if isinstance(value, int | str) and not isinstance(value, bool):
            size: int = convert_file_size_to_int(value)
            return size
    except (OverflowError, ValueError):
        pass
    raise OptionError(f"{name}={value!r} is no size; pass such as 2GB, or 0 to switch it off")
