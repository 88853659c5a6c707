"""The test split of a public data set: local files, or the Hub's copy."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from datasets import load_dataset

from copyspec_eval.errors import DataError
from copyspec_eval.paths import DATA_DIR_VARIABLE, data_dir
from copyspec_eval.sources import JsonLine, read_jsonl


def read_test_split(
    name: str, config: str, files: str, fields: Sequence[str]
) -> Iterator[JsonLine]:
    """The rows' `fields`, none blank: of `files` below `$COPYSPEC_DATA_DIR`, else of the Hub."""
    for where, row in _rows(name, config, files):
        for field in fields:
            value = row.get(field)
            if not isinstance(value, str) or not value.strip():
                raise DataError(f"{where}: {field} is {value!r:.60}; give a non-empty string")
        yield JsonLine(where, {field: row[field] for field in fields})


def _rows(name: str, config: str, files: str) -> Iterator[JsonLine]:
    if folder := data_dir():
        paths = sorted(folder.glob(files))
        if not paths:
            raise DataError(
                f"{folder / files}: no such file; put a copy of the test split of {name} there, or "
                f"unset {DATA_DIR_VARIABLE} to download it"
            )
        for path in paths:
            yield from read_jsonl(path)
        return
    try:
        rows = load_dataset(name, config, split="test")
    except (OSError, ValueError) as error:
        reason = " ".join(str(error).split())
        raise DataError(
            f"cannot download {name} ({reason:.200}); copy its test split to FOLDER/{files} and "
            f"set {DATA_DIR_VARIABLE}=FOLDER"
        ) from error
    for number, row in enumerate(rows, start=1):
        yield JsonLine(f"{name}:{number}", row)
