"""Public data files: a local copy, or the pinned public file, downloaded once and cached."""

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, NamedTuple, TypedDict

import msgspec
import pooch
from msgspec import Meta

from copyspec_eval import journal
from copyspec_eval.errors import DataError, unknown_option
from copyspec_eval.paths import DATA_DIR_VARIABLE, data_dir

TIMEOUT_SECONDS = 30
_GITHUB = "https://raw.githubusercontent.com"
_FASTCHAT = f"{_GITHUB}/lm-sys/FastChat/0e6d3e4beaab66f4d3f93db72541a4abab8af28d"
_BENCH = f"{_FASTCHAT}/fastchat/llm_judge/data"
_COPYSPEC = f"{_GITHUB}/RazvanDu/CopySpec/8797be892b56d9fb45b4a0d8b67c38eb80d40499"


class PublicFile(NamedTuple):
    url: str
    sha256: str


FILES = {
    "mt_bench/question.jsonl": PublicFile(
        f"{_BENCH}/mt_bench/question.jsonl",
        "119565adbab82227089cefdb44c8d7e2cf04dc0a0ec233634c82e7d4e2a944f7",
    ),
    "mt_bench/question_redundant.jsonl": PublicFile(
        f"{_COPYSPEC}/FastChat/fastchat/llm_judge/data/mt_bench/question_redundant.jsonl",
        "647df7a6f5f4a19d1cb8135dd1f57afd39cb6c49b7bff4feae4eb74f44223a46",
    ),
    "mt_bench/judge_prompts.jsonl": PublicFile(
        f"{_BENCH}/judge_prompts.jsonl",
        "fd283293406d024f44c174b094ef48031d0687a4682fd3a56b29b138f80281b6",
    ),
    "mt_bench/reference_answer_gpt-4.jsonl": PublicFile(
        f"{_BENCH}/mt_bench/reference_answer/gpt-4.jsonl",
        "f957a5bc977badb66885ec970e6cd08527845780313f0995764260e5777b9b3f",
    ),
    "reference/cp_gsm.py": PublicFile(
        f"{_COPYSPEC}/GSM/cp_gsm.py",
        "dd6630b7a96186829823ff7c09c258b4892847d813ae81ad26cf44748d94892f",
    ),
    "reference/evaluate_cnn.py": PublicFile(
        f"{_COPYSPEC}/CNNDM/evaluate_cnn.py",
        "8c3b269855fbbd3e899bc38b8e57d8a7c766a9abe2c98bb9952b068fbf5cd41f",
    ),
}
"""By their paths below `$COPYSPEC_DATA_DIR`."""


class JsonLine(NamedTuple):
    """A line of a JSONL file: its fields, and `FILE:LINE` for messages."""

    where: str
    fields: dict[str, Any]


class Question(TypedDict):
    """One conversation: what the user asks, turn by turn; no turn is blank."""

    question_id: int
    category: str
    turns: Annotated[list[Annotated[str, Meta(pattern=r"\S")]], Meta(min_length=1)]


def locate(path: str) -> Path:
    """Where `path` of `FILES` is: below `$COPYSPEC_DATA_DIR` if that is set, else downloaded."""
    if path not in FILES:
        raise unknown_option("data file", path, FILES)
    if folder := data_dir():
        if not (local := folder / path).is_file():
            remedy = f"put a copy there, or unset {DATA_DIR_VARIABLE} to download it"
            raise DataError(f"{local}: no such file; {remedy}")
        return local
    file = FILES[path]
    pooch.get_logger().setLevel("WARNING")
    cache = pooch.os_cache("copyspec_eval") / file.sha256[:12]
    downloader = pooch.HTTPDownloader(timeout=TIMEOUT_SECONDS)
    try:
        return Path(pooch.retrieve(*file, Path(path).name, cache, downloader=downloader))
    except (OSError, ValueError) as error:
        reason = f"cannot download {file.url} to {cache} ({' '.join(str(error).split()):.100})"
        remedy = f"copy it to FOLDER/{path} and set {DATA_DIR_VARIABLE}=FOLDER"
        raise DataError(f"{reason}; {remedy}") from error


def read_as_published(path: str) -> str:
    """The text of the file `path` of `FILES`, refused where it differs from the public one."""
    content, (url, published) = locate(path).read_bytes(), FILES[path]
    digest = hashlib.sha256(content).hexdigest()
    if digest != published:
        reason = f"its SHA-256 is {digest:.12}…, not the published {published:.12}…"
        raise DataError(f"{locate(path)}: {reason}; copy {url} there")
    return content.decode()


def read_jsonl(path: Path) -> Iterator[JsonLine]:
    """The lines of a JSONL file, of which there is at least one; blank ones are skipped."""
    is_empty = True
    for number, line in journal.lines(path):
        if not line.strip():
            continue
        is_empty, where = False, f"{path}:{number}"
        try:
            fields = journal.parsed(line)
        except json.JSONDecodeError as error:
            reason = f"not JSON ({error.msg} at column {error.colno})"
            raise DataError(f"{where}: {reason}; write one JSON object on each line") from error
        except ValueError as error:
            reason = f"not JSON that can be read ({error})"
            raise DataError(f"{where}: {reason}; correct the line") from error
        if not isinstance(fields, dict):
            actual = f"a {type(fields).__name__}, not a JSON object"
            raise DataError(f"{where}: {actual}; write one JSON object on each line")
        yield JsonLine(where, fields)
    if is_empty:
        raise DataError(f"{path}: no rows in it; copy the file again")


def read_questions(path: Path) -> list[Question]:
    """All questions of a file in the format of FastChat's `question.jsonl`."""
    questions: list[Question] = []
    places: dict[int, str] = {}
    for where, fields in read_jsonl(path):
        try:
            question = msgspec.convert(fields, Question)
        except msgspec.ValidationError as error:
            remedy = "give question_id, category, and turns, none of them blank"
            raise DataError(f"{where}: {error}; {remedy}") from error
        identity, num_turns = question["question_id"], len(question["turns"])
        if identity in places:
            place = places[identity]
            raise DataError(f"{where}: question_id {identity} is also at {place}; remove one")
        if questions and num_turns != (first := len(questions[0]["turns"])):
            difference = f"{num_turns} turns, but the first question has {first}"
            raise DataError(f"{where}: {difference}; give every question the same number")
        places[identity] = where
        questions.append(question)
    return questions
