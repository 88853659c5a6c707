"""Question files: where they come from, and what is reported of a bad one."""

import hashlib
import json
import time
from collections.abc import Iterator
from http.server import ThreadingHTTPServer
from pathlib import Path

import pytest
from threaded_server import Handler, InThread

from copyspec_eval import sources
from copyspec_eval.errors import DataError, OptionError
from copyspec_eval.sources import PublicFile, locate, read_jsonl, read_questions

CONTENT = b'{"question_id": 1, "category": "writing", "turns": ["a", "b"]}\n'
PATH = "folder/questions.jsonl"


class FileServer(InThread, ThreadingHTTPServer):
    """Answers every request with `content` and `status`; the header promises `missing` bytes more.

    Attributes:
        num_requests: how many it has answered.
    """

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.content, self.status, self.missing = CONTENT, 200, 0
        self.num_requests = 0


class _Handler(Handler):
    server: FileServer

    def do_GET(self) -> None:
        self.server.num_requests += 1
        self.send(self.server.content, self.server.status, self.server.missing)


@pytest.fixture
def network(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[FileServer]:
    """A server of the file `PATH`, with an empty cache below `tmp_path` and no local data."""
    monkeypatch.delenv("COPYSPEC_DATA_DIR", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    with FileServer() as server:
        file = PublicFile(server.url, hashlib.sha256(CONTENT).hexdigest())
        monkeypatch.setitem(sources.FILES, PATH, file)
        yield server


def cached_files(tmp_path: Path) -> list[Path]:
    return [path for path in (tmp_path / "cache").rglob("*") if path.is_file()]


def test_local_copy_is_taken_as_it_is(network, monkeypatch, tmp_path):
    monkeypatch.setenv("COPYSPEC_DATA_DIR", str(tmp_path))
    copy = tmp_path / PATH
    copy.parent.mkdir()
    copy.write_bytes(b"mine")
    assert locate(PATH) == copy
    assert network.num_requests == 0


def test_missing_local_copy_never_asks_the_network(network, monkeypatch, tmp_path):
    monkeypatch.setenv("COPYSPEC_DATA_DIR", str(tmp_path))
    with pytest.raises(
        DataError, match=r"folder/questions\.jsonl: no such file.*COPYSPEC_DATA_DIR"
    ):
        locate(PATH)
    assert network.num_requests == 0


def test_download_is_cached(network, tmp_path, capfd):
    first = locate(PATH)
    assert locate(PATH) == first
    assert first.read_bytes() == CONTENT
    assert network.num_requests == 1
    assert cached_files(tmp_path) == [first]
    assert first.is_relative_to(tmp_path / "cache" / "copyspec_eval")
    assert capfd.readouterr() == ("", "")


def test_damaged_cache_is_downloaded_again(network):
    locate(PATH).write_bytes(CONTENT[:10])
    assert locate(PATH).read_bytes() == CONTENT


@pytest.mark.parametrize("other", [CONTENT + b"\n", CONTENT[:-1], CONTENT.replace(b"a", b"c")])
def test_other_content_is_refused_and_not_cached(network, tmp_path, other):
    network.content = other
    with pytest.raises(DataError, match=r"SHA256 .* does not match.*COPYSPEC_DATA_DIR=FOLDER"):
        locate(PATH)
    assert cached_files(tmp_path) == []


@pytest.mark.parametrize("failure", ["refused", "silent", "not found", "cut off"])
def test_a_failed_download_is_one_line(network, monkeypatch, tmp_path, failure):
    url = network.url
    if failure == "refused":
        url = "http://127.0.0.1:9/questions.jsonl"
        file = sources.FILES[PATH]._replace(url=url)
        monkeypatch.setitem(sources.FILES, PATH, file)
    elif failure == "silent":
        monkeypatch.setattr(sources, "TIMEOUT_SECONDS", 0.1)
        monkeypatch.setattr(_Handler, "do_GET", lambda _: time.sleep(1))
    elif failure == "not found":
        network.status = 404
    else:
        network.missing = 5
    with pytest.raises(DataError) as caught:
        locate(PATH)
    message = str(caught.value)
    assert "\n" not in message
    assert message.startswith(f"cannot download {url} to {tmp_path}")
    assert message.endswith(f"copy it to FOLDER/{PATH} and set COPYSPEC_DATA_DIR=FOLDER")
    assert cached_files(tmp_path) == []


def test_unwritable_cache(network, monkeypatch, tmp_path):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    with pytest.raises(DataError, match=r"to .*/file/copyspec_eval/.*Not a directory.*=FOLDER$"):
        locate(PATH)


def test_unknown_file():
    with pytest.raises(OptionError, match=r"did you mean 'mt_bench/question\.jsonl'"):
        locate("mt_bench/questions.jsonl")


def test_lines_have_their_number(tmp_path):
    path = tmp_path / "rows.jsonl"
    path.write_text('{"a": 1}\n\n{"a": "é"}\n', encoding="utf-8")
    assert list(read_jsonl(path)) == [(f"{path}:1", {"a": 1}), (f"{path}:3", {"a": "é"})]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "{path}: no rows in it; "),
        (b"\n \n", "{path}: no rows in it; "),
        (b"\n" * 6 + b'{"question_id": 7,\n', "{path}:7: not JSON ("),
        (CONTENT + b"[1]\n", "{path}:2: a list, not a JSON object; "),
        (CONTENT + b"\xff\n", "{path}:2: not JSON that can be read (not UTF-8); "),
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
    with pytest.raises(
        DataError,
        match=r"none\.jsonl: cannot be read \(No such file or directory\); check the path",
    ):
        read_questions(tmp_path / "none.jsonl")


def question(**changes: object) -> dict[str, object]:
    return {"question_id": 1, "category": "writing", "turns": ["a", "b"]} | changes


@pytest.mark.parametrize(
    ("row", "message"),
    [
        (question(question_id=None), "Expected `int`, got `null` - at `$.question_id`; give"),
        (question(question_id=True), "Expected `int`, got `bool` - at `$.question_id`; give"),
        (question(category=3), "Expected `str`, got `int` - at `$.category`; give"),
        (question(turns=[]), "Expected `array` of length >= 1 - at `$.turns`; give"),
        (question(turns="ab"), "Expected `array`, got `str` - at `$.turns`; give"),
        (question(turns=["a", " "]), "Expected `str` matching regex "),
        (question(turns=["a", "b", "c"]), "3 turns, but the first question has 2; give every "),
        (question(question_id=0), "question_id 0 is also at {path}:1; remove one"),
        ({}, "Object missing required field `"),
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


@pytest.mark.parametrize("path", sources.FILES)
def test_local_copies_equal_the_public_files(data_dir, path):
    content = (data_dir / path).read_bytes()
    assert hashlib.sha256(content).hexdigest() == sources.FILES[path].sha256


@pytest.mark.parametrize("name", ["question.jsonl", "question_redundant.jsonl"])
def test_local_copies_are_two_turn_questions(data_dir, name):
    questions = read_questions(data_dir / "mt_bench" / name)
    assert (len(questions), len(questions[0]["turns"])) == (80, 2)
