"""Question files: where they come from, and what is said of a bad one."""

from __future__ import annotations

import hashlib
import http.client
import json
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from copyspec_eval import sources
from copyspec_eval.errors import DataError, OptionError
from copyspec_eval.sources import PublicFile, locate, read_jsonl, read_questions

CONTENT = b'{"question_id": 1, "category": "writing", "turns": ["a", "b"]}\n'
FILE = PublicFile(
    "folder/questions.jsonl",
    "https://example.org/questions.jsonl",
    len(CONTENT),
    hashlib.sha256(CONTENT).hexdigest(),
)


class Network:
    """Stands in for `urllib.request.urlopen`: answers with `content`, or raises it."""

    def __init__(self, content: bytes | Exception) -> None:
        self.content = content
        self.num_calls = 0

    def __call__(self, url: str, timeout: float) -> Network:
        assert url == FILE.url
        self.num_calls += 1
        if isinstance(self.content, Exception):
            raise self.content
        return self

    def __enter__(self) -> Network:
        return self

    def __exit__(self, *args: object) -> None:
        pass

    def read(self, limit: int) -> bytes:
        assert isinstance(self.content, bytes)
        return self.content[:limit]


@pytest.fixture
def connect(monkeypatch, tmp_path):
    """Replaces the network, with an empty cache below `tmp_path` and no local data."""

    def replace(content: bytes | Exception) -> Network:
        network = Network(content)
        monkeypatch.setattr(urllib.request, "urlopen", network)
        return network

    monkeypatch.delenv("COPYSPEC_DATA_DIR", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setitem(sources.FILES, FILE.path, FILE)
    return replace


def test_local_copy_is_taken_as_it_is(connect, monkeypatch, tmp_path):
    network = connect(CONTENT)
    monkeypatch.setenv("COPYSPEC_DATA_DIR", str(tmp_path))
    copy = tmp_path / FILE.path
    copy.parent.mkdir()
    copy.write_bytes(b"mine")
    assert locate(FILE.path) == copy
    assert network.num_calls == 0


def test_missing_local_copy_never_asks_the_network(connect, monkeypatch, tmp_path):
    network = connect(CONTENT)
    monkeypatch.setenv("COPYSPEC_DATA_DIR", str(tmp_path))
    with pytest.raises(
        DataError, match=r"folder/questions\.jsonl: no such file.*COPYSPEC_DATA_DIR"
    ):
        locate(FILE.path)
    assert network.num_calls == 0


def test_download_is_cached(connect, tmp_path):
    network = connect(CONTENT)
    first = locate(FILE.path)
    assert locate(FILE.path) == first
    assert first.read_bytes() == CONTENT
    assert network.num_calls == 1
    assert [path for path in (tmp_path / "cache").rglob("*") if path.is_file()] == [first]


def test_damaged_cache_is_downloaded_again(connect):
    connect(CONTENT)
    cached = locate(FILE.path)
    cached.write_bytes(CONTENT[:10])
    assert locate(FILE.path).read_bytes() == CONTENT


@pytest.mark.parametrize("other", [CONTENT + b"\n", CONTENT[:-1], CONTENT.replace(b"a", b"c")])
def test_other_content_is_refused_and_not_cached(connect, tmp_path, other):
    connect(other)
    with pytest.raises(DataError, match=r"SHA-256 .*COPYSPEC_DATA_DIR=FOLDER"):
        locate(FILE.path)
    assert not (tmp_path / "cache").exists()


@pytest.mark.parametrize(
    "failure",
    [
        urllib.error.URLError("Name or service not known"),
        TimeoutError("timed out"),
        http.client.IncompleteRead(b""),
    ],
)
def test_no_network_is_one_line(connect, failure):
    connect(failure)
    with pytest.raises(DataError) as caught:
        locate(FILE.path)
    message = str(caught.value)
    assert "\n" not in message
    assert FILE.url in message
    assert "copy it to FOLDER/folder/questions.jsonl and set COPYSPEC_DATA_DIR=FOLDER" in message


def test_unwritable_cache(connect, monkeypatch, tmp_path):
    connect(CONTENT)
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    with pytest.raises(DataError, match=r"cannot be written.*XDG_CACHE_HOME"):
        locate(FILE.path)


def test_unknown_file():
    with pytest.raises(OptionError, match=r"did you mean 'mt_bench/question\.jsonl'"):
        locate("mt_bench/questions.jsonl")


def test_rows_know_their_line(tmp_path):
    path = tmp_path / "rows.jsonl"
    path.write_text('{"a": 1}\n\n{"a": "é"}\n', encoding="utf-8")
    assert list(read_jsonl(path)) == [(f"{path}:1", {"a": 1}), (f"{path}:3", {"a": "é"})]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "{path}: the file is empty; "),
        (b"\n \n", "{path}: only blank lines; "),
        (b"\n" * 6 + b'{"question_id": 7,\n', "{path}:7: not JSON ("),
        (CONTENT + b"[1]\n", "{path}:2: a list, not a JSON object; "),
        (b"\xff\n", "{path}:1: not UTF-8; "),
    ],
)
def test_bad_files(tmp_path, content, message):
    path = tmp_path / "questions.jsonl"
    path.write_bytes(content)
    with pytest.raises(DataError) as caught:
        read_questions(path)
    assert str(caught.value).startswith(message.format(path=path))
    assert "\n" not in str(caught.value)


def test_missing_file(tmp_path):
    with pytest.raises(DataError, match=r"none\.jsonl: No such file or directory; check the path"):
        read_questions(tmp_path / "none.jsonl")


def question(**changes: object) -> dict[str, object]:
    return {"question_id": 1, "category": "writing", "turns": ["a", "b"]} | changes


@pytest.mark.parametrize(
    ("row", "message"),
    [
        (question(question_id=None), "question_id is None; give an integer"),
        (question(question_id=True), "question_id is True; give an integer"),
        (question(category=3), "category is 3; give a string"),
        (question(turns=[]), "turns is []; give a list of non-empty strings"),
        (question(turns="ab"), "turns is 'ab'; give a list of non-empty strings"),
        (question(turns=["a", " "]), "turns is ['a', ' ']; give a list of non-empty strings"),
        (question(turns=["a", "b", "c"]), "3 turns, but the first question has 2; give every "),
        (question(question_id=0), "question_id 0 is also at {path}:1; remove one"),
        ({}, "question_id is None; give an integer"),
    ],
)
def test_bad_questions(tmp_path, row, message):
    path = tmp_path / "questions.jsonl"
    path.write_text(f"{json.dumps(question(question_id=0))}\n{json.dumps(row)}\n")
    with pytest.raises(DataError) as caught:
        read_questions(path)
    assert str(caught.value).startswith(f"{path}:2: {message}".replace("{path}", str(path)))


def test_other_fields_are_left_out(tmp_path):
    path = tmp_path / "questions.jsonl"
    path.write_text(json.dumps(question(reference=[None, 3])) + "\n")
    assert read_questions(path) == [question()]


@pytest.mark.parametrize("file", sources.FILES.values(), ids=sources.FILES)
def test_local_copies_equal_the_public_files(data_dir: Path, file: PublicFile):
    assert file.is_content((data_dir / file.path).read_bytes())


@pytest.mark.parametrize("name", ["question.jsonl", "question_redundant.jsonl"])
def test_local_copies_are_two_turn_questions(data_dir: Path, name: str):
    questions = read_questions(data_dir / "mt_bench" / name)
    assert (len(questions), len(questions[0]["turns"])) == (80, 2)
