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
from copyspec_eval.sources import PublicFile, locate, read_questions

CONTENT = b'{"question_id": 1, "category": "writing", "turns": ["a", "b"]}\n'
PATH = "folder/questions.jsonl"


class FileServer(InThread, ThreadingHTTPServer):
    """Answers with `content` and `status`; the header promises `missing` bytes more."""

    content, status, missing, num_requests = CONTENT, 200, 0, 0


class _Handler(Handler):
    server: FileServer

    def do_GET(self) -> None:
        self.server.num_requests += 1
        self.send(self.server.content, self.server.status, self.server.missing)


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    return tmp_path / "cache"


@pytest.fixture
def network(monkeypatch: pytest.MonkeyPatch, cache: Path) -> Iterator[FileServer]:
    """A server of the file `PATH`, with an empty cache and no local data."""
    monkeypatch.delenv("COPYSPEC_DATA_DIR", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(cache))
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    with FileServer(("127.0.0.1", 0), _Handler) as server:
        file = PublicFile(server.url, hashlib.sha256(CONTENT).hexdigest())
        monkeypatch.setitem(sources.FILES, PATH, file)
        yield server


def files_in(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file()]


def test_a_local_copy_is_taken_as_it_is_and_the_network_never_asked(network, local_data):
    copy = local_data / PATH
    with pytest.raises(DataError, match=r"questions\.jsonl: no such file.*COPYSPEC_DATA_DIR"):
        locate(PATH)
    copy.parent.mkdir()
    copy.write_bytes(b"mine")
    assert locate(PATH) == copy
    assert network.num_requests == 0


def test_a_download_is_cached_and_a_damaged_cache_downloaded_again(network, cache, capfd):
    first = locate(PATH)
    assert locate(PATH) == first
    assert first.read_bytes() == CONTENT
    assert network.num_requests == 1
    assert files_in(cache) == files_in(cache / "copyspec_eval") == [first]
    first.write_bytes(CONTENT[:10])
    assert locate(PATH).read_bytes() == CONTENT
    assert capfd.readouterr() == ("", "")


def test_other_content_is_refused_and_not_cached(network, cache):
    network.content = CONTENT[:-1]
    with pytest.raises(DataError, match=r"SHA256 .* does not match.*COPYSPEC_DATA_DIR=FOLDER"):
        locate(PATH)
    assert files_in(cache) == []


@pytest.mark.parametrize("failure", ["refused", "silent", "not found", "cut off", "unwritable"])
def test_a_failed_download_is_one_line(network, monkeypatch, cache, failure):
    url = network.url
    if failure == "refused":
        url = "http://127.0.0.1:9/questions.jsonl"
        monkeypatch.setitem(sources.FILES, PATH, sources.FILES[PATH]._replace(url=url))
    elif failure == "silent":
        monkeypatch.setattr(sources, "TIMEOUT_SECONDS", 0.1)
        monkeypatch.setattr(_Handler, "do_GET", lambda _: time.sleep(1))
    elif failure == "not found":
        network.status = 404
    elif failure == "cut off":
        network.missing = 5
    else:
        cache.write_text("")
    with pytest.raises(DataError) as caught:
        locate(PATH)
    message = str(caught.value)
    assert "\n" not in message
    assert ("Not a directory" in message) == (failure == "unwritable")
    assert message.startswith(f"cannot download {url} to {cache}/copyspec_eval/")
    assert message.endswith(f"copy it to FOLDER/{PATH} and set COPYSPEC_DATA_DIR=FOLDER")
    assert files_in(cache) == []


def test_unknown_file():
    with pytest.raises(OptionError, match=r"did you mean 'mt_bench/question\.jsonl'"):
        locate("mt_bench/questions.jsonl")


def second(**changes: object) -> bytes:
    return CONTENT + json.dumps(json.loads(CONTENT) | changes).encode()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, ": cannot be read (No such file or directory); check the path"),
        (b"", ": no rows in it; "),
        (b"\n" * 6 + b'{"question_id": 7,\n', ":7: not JSON ("),
        (CONTENT + b"[1]\n", ":2: a list, not a JSON object; "),
        (CONTENT + b"\xff\n", ":2: not JSON that can be read (not UTF-8); "),
        (CONTENT + b"\n{}", ":3: Object missing required field `"),
        (second(question_id=None), ":2: Expected `int`, got `null` - at `$.question_id`; give"),
        (second(category=3), ":2: Expected `str`, got `int` - at `$.category`; give"),
        (second(turns=[]), ":2: Expected `array` of length >= 1 - at `$.turns`; give"),
        (second(turns="ab"), ":2: Expected `array`, got `str` - at `$.turns`; give"),
        (second(turns=["a", " "]), ":2: Expected `str` matching regex "),
        (second(question_id=2, turns=["a"]), ":2: 1 turns, but the first question has 2; give ev"),
        (second(), ":2: question_id 1 is also at {path}:1; remove one"),
    ],
)
def test_bad_files(tmp_path, content, message):
    path = tmp_path / "questions.jsonl"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(DataError) as caught:
        read_questions(path)
    assert str(caught.value).startswith(f"{path}{message}".replace("{path}", str(path)))
    assert "\n" not in str(caught.value)


def test_other_fields_and_empty_lines_are_left_out(tmp_path):
    path = tmp_path / "questions.jsonl"
    row = json.loads(CONTENT) | {"category": "é"}
    text = json.dumps(row | {"reference": [None, 3]}, ensure_ascii=False)
    path.write_text(f"{text}\n\n", encoding="utf-8")
    assert read_questions(path) == [row]


@pytest.mark.parametrize("path", sources.FILES)
def test_local_copies_equal_the_public_files(data_dir, path):
    content = (data_dir / path).read_bytes()
    assert hashlib.sha256(content).hexdigest() == sources.FILES[path].sha256
