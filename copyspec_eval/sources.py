"""Public data files: a local copy, or the pinned public one, checked and cached."""

from __future__ import annotations

import hashlib
import http.client
import json
import os
import tempfile
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, TypedDict

from copyspec_eval.errors import DataError, unknown_option
from copyspec_eval.paths import DATA_DIR_VARIABLE, data_dir

TIMEOUT_SECONDS = 30
_FASTCHAT = (
    "https://raw.githubusercontent.com/lm-sys/FastChat/0e6d3e4beaab66f4d3f93db72541a4abab8af28d"
)
_COPYSPEC = (
    "https://raw.githubusercontent.com/RazvanDu/CopySpec/8797be892b56d9fb45b4a0d8b67c38eb80d40499"
)


@dataclass(frozen=True, slots=True)
class PublicFile:
    """A file that others published, pinned to one content.

    Attributes:
        path: where a local copy lies below `$COPYSPEC_DATA_DIR`; also the file's name in our tasks.
        url: where it is downloaded from.
        num_bytes, sha256: what it must be.
    """

    path: str
    url: str
    num_bytes: int
    sha256: str

    def is_content(self, content: bytes) -> bool:
        """Whether `content` is this file's."""
        checksum = hashlib.sha256(content).hexdigest()
        return len(content) == self.num_bytes and checksum == self.sha256


FILES: dict[str, PublicFile] = {
    file.path: file
    for file in (
        PublicFile(
            "mt_bench/question.jsonl",
            f"{_FASTCHAT}/fastchat/llm_judge/data/mt_bench/question.jsonl",
            48929,
            "119565adbab82227089cefdb44c8d7e2cf04dc0a0ec233634c82e7d4e2a944f7",
        ),
        PublicFile(
            "mt_bench/question_redundant.jsonl",
            f"{_COPYSPEC}/FastChat/fastchat/llm_judge/data/mt_bench/question_redundant.jsonl",
            53538,
            "647df7a6f5f4a19d1cb8135dd1f57afd39cb6c49b7bff4feae4eb74f44223a46",
        ),
        PublicFile(
            "mt_bench/judge_prompts.jsonl",
            f"{_FASTCHAT}/fastchat/llm_judge/data/judge_prompts.jsonl",
            10449,
            "fd283293406d024f44c174b094ef48031d0687a4682fd3a56b29b138f80281b6",
        ),
        PublicFile(
            "mt_bench/reference_answer_gpt-4.jsonl",
            f"{_FASTCHAT}/fastchat/llm_judge/data/mt_bench/reference_answer/gpt-4.jsonl",
            51109,
            "f957a5bc977badb66885ec970e6cd08527845780313f0995764260e5777b9b3f",
        ),
    )
}


class Row(NamedTuple):
    """One line of a JSONL file: its fields, and `FILE:LINE` for messages."""

    where: str
    fields: dict[str, Any]


class Question(TypedDict):
    """One conversation: what the user says, turn by turn."""

    question_id: int
    category: str
    turns: list[str]


def locate(path: str) -> Path:
    """The file `path` of `FILES`: below `$COPYSPEC_DATA_DIR` if that is set, else downloaded once.

    With the variable set the network is never asked, and the local file may differ from the public
    one.

    Raises:
        OptionError: `FILES` has no such file.
        DataError: the local copy is missing; or there is none and the download fails.
    """
    if path not in FILES:
        raise unknown_option("data file", path, FILES)
    folder = data_dir()
    if folder is None:
        return _cached(FILES[path])
    local = folder / path
    if not local.is_file():
        raise DataError(
            f"{local}: no such file; put a copy there, or unset {DATA_DIR_VARIABLE} to download it"
        )
    return local


def read_jsonl(path: Path) -> Iterator[Row]:
    """Rows of a JSONL file, blank lines left out.

    Raises:
        DataError: the file is missing or empty, or a line is not a JSON object.
    """
    number = 0
    try:
        with path.open(encoding="utf-8") as lines:
            for number, line in enumerate(lines, start=1):
                if line.strip():
                    yield _row(f"{path}:{number}", line)
    except UnicodeDecodeError as error:
        raise DataError(f"{path}:{number + 1}: not UTF-8; save the file as UTF-8") from error
    except OSError as error:
        raise DataError(f"{path}: {error.strerror}; check the path") from error
    if not number:
        raise DataError(f"{path}: the file is empty; copy it again")


def read_questions(path: Path) -> list[Question]:
    """All questions of a file in the format of FastChat's `question.jsonl`, other fields left out.

    Raises:
        DataError: as `read_jsonl`; a field is missing or of another type; a `question_id` occurs
            twice; the questions differ in their number of turns.
    """
    questions: list[Question] = []
    seen: dict[int, str] = {}
    for row in read_jsonl(path):
        question = _question(row)
        identity, num_turns = question["question_id"], len(question["turns"])
        if identity in seen:
            raise DataError(
                f"{row.where}: question_id {identity} is also at {seen[identity]}; remove one"
            )
        if questions and num_turns != len(questions[0]["turns"]):
            raise DataError(
                f"{row.where}: {num_turns} turns, but the first question has "
                f"{len(questions[0]['turns'])}; give every question the same number"
            )
        seen[identity] = row.where
        questions.append(question)
    if not questions:
        raise DataError(f"{path}: only blank lines; copy the file again")
    return questions


def _row(where: str, line: str) -> Row:
    try:
        fields = json.loads(line.rstrip())
    except json.JSONDecodeError as error:
        raise DataError(
            f"{where}: not JSON ({error.msg} at column {error.colno}); "
            "write one JSON object on each line"
        ) from error
    if not isinstance(fields, dict):
        raise DataError(
            f"{where}: a {type(fields).__name__}, not a JSON object; "
            "write one JSON object on each line"
        )
    return Row(where, fields)


def _question(row: Row) -> Question:
    where, fields = row
    identity, category, turns = (fields.get(name) for name in Question.__annotations__)
    if not isinstance(identity, int) or isinstance(identity, bool):
        raise DataError(f"{where}: question_id is {identity!r}; give an integer")
    if not isinstance(category, str):
        raise DataError(f"{where}: category is {category!r}; give a string")
    if not isinstance(turns, list) or not turns or not all(map(_is_text, turns)):
        shown = repr(turns) if len(repr(turns)) <= 60 else repr(turns)[:60] + "…"
        raise DataError(f"{where}: turns is {shown}; give a list of non-empty strings")
    return {"question_id": identity, "category": category, "turns": turns}


def _is_text(value: object) -> bool:
    return isinstance(value, str) and bool(value.strip())


def _cached(file: PublicFile) -> Path:
    """The file in the cache, downloaded if it is not there whole."""
    root = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    target = root / "copyspec_eval" / file.sha256[:12] / Path(file.path).name
    if not target.is_file() or not file.is_content(target.read_bytes()):
        content = _download(file)
        try:
            _write(target, content)
        except OSError as error:
            raise DataError(
                f"{target}: cannot be written ({error.strerror}); "
                "set XDG_CACHE_HOME to a folder that can"
            ) from error
    return target


def _download(file: PublicFile) -> bytes:
    remedy = f"copy it to FOLDER/{file.path} and set {DATA_DIR_VARIABLE}=FOLDER"
    try:
        with urllib.request.urlopen(file.url, timeout=TIMEOUT_SECONDS) as response:
            content: bytes = response.read(file.num_bytes + 1)
    except (OSError, http.client.HTTPException) as error:
        reason = getattr(error, "reason", error)
        raise DataError(f"cannot download {file.url} ({reason}); {remedy}") from error
    if not file.is_content(content):
        raise DataError(
            f"{file.url}: not the {file.num_bytes} bytes with SHA-256 {file.sha256[:12]}… "
            f"that were published; {remedy}"
        )
    return content


def _write(target: Path, content: bytes) -> None:
    """Write in one step, since other ranks may read, or write the same."""
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile(dir=target.parent, delete=False) as partial:
        partial.write(content)
    Path(partial.name).replace(target)
