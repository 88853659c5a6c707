"""What all tests share: no network, local data, and the switch for slow tests."""

import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from benchmarks.real_model import FOLDER, is_made
from byte_model import save_byte_model
from few_tasks import link_lm_eval

# Before any test imports huggingface_hub, which reads it once.
os.environ["HF_HUB_OFFLINE"] = "1"
# Models of this size are slower on two threads; tests that need more ask torch for them.
os.environ.setdefault("OMP_NUM_THREADS", "1")
# Threads that wait for each other actively stand still where tests run side by side.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")
# Kernels are compiled once for the whole run of the tests, and not kept beyond.
if "PYTEST_XDIST_WORKER" not in os.environ:
    _cache = TemporaryDirectory(prefix="copyspec-tests-")
    os.environ["XDG_CACHE_HOME"] = _cache.name
    # Commands that tests run; those of `test_doors` do without.
    _packages = TemporaryDirectory(prefix="copyspec-tests-")
    link_lm_eval(Path(_packages.name))
    os.environ["PYTHONPATH"] = os.pathsep.join(
        filter(None, [_packages.name, os.environ.get("PYTHONPATH")])
    )


# Only the sandbox may run these: the search for doctests would import them.
collect_ignore_glob = ["programs/*"]


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--runslow", action="store_true", help="also run the tests marked slow")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    # The longest first: at the end one worker would run it while the others have nothing to do.
    items.sort(key=lambda item: not item.name.startswith("test_commands_run_as_printed"))
    for item in items:
        if item.get_closest_marker("slow") and not config.getoption("--runslow"):
            item.add_marker(pytest.mark.skip(reason="slow: run with --runslow"))


@pytest.fixture(params=[pytest.param(1, marks=pytest.mark.slow), 2], ids=["1-thread", "2-threads"])
def threads(request: pytest.FixtureRequest) -> Iterator[None]:
    """With one thread of torch's, then with two."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def torchs_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    """Attention and linear layers as where there is no C++ compiler."""
    monkeypatch.setattr("copyspec_eval.decoding.kernels.is_available", lambda dtype: False)


@pytest.fixture(params=["our_kernels", "torchs_kernels"], ids=["ours", "torch's"])
def either_kernels(request: pytest.FixtureRequest) -> None:
    request.getfixturevalue(request.param)


@pytest.fixture
def our_kernels() -> None:
    import torch

    from copyspec_eval.decoding import kernels

    if kernels.library.compiler() is None:
        pytest.skip("NOT TESTED without a C++ compiler: apt-get install g++")
    assert kernels.is_available(torch.float32)


@pytest.fixture(scope="session")
def data_dir() -> Path:
    """Folder of the local copies of the public data sets; without one the test is skipped."""
    value = os.environ.get("COPYSPEC_DATA_DIR")
    if not value:
        pytest.skip("NOT TESTED without data: set COPYSPEC_DATA_DIR to a folder of the data sets")
    return Path(value)


@pytest.fixture
def local_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder that is `COPYSPEC_DATA_DIR`, for a test's own files."""
    monkeypatch.setenv("COPYSPEC_DATA_DIR", str(tmp_path))
    return tmp_path


@pytest.fixture(scope="session")
def real_model() -> Path:
    """Folder of SmolLM2-135M-Instruct in bfloat16; without it the test is skipped."""
    if not is_made(FOLDER):
        pytest.skip("NOT TESTED without a real model: run .venv/bin/python scripts/real_model")
    return FOLDER


@pytest.fixture(scope="session")
def byte_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of a small random model and its tokenizer, with a chat template."""
    folder = tmp_path_factory.mktemp("byte_model")
    save_byte_model(folder)
    return folder


@pytest.fixture(scope="session")
def questions(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two-turn questions of our own in both question files, laid out as `COPYSPEC_DATA_DIR`."""
    rows = [
        {
            "question_id": number,
            "category": "writing" if number % 2 else "math",
            "turns": [f"Write {number} rhymes.", "Write them once more, with one word changed."],
        }
        for number in range(1, 7)
    ]
    folder = tmp_path_factory.mktemp("data")
    (folder / "mt_bench").mkdir()
    for name in ("question.jsonl", "question_redundant.jsonl"):
        text = "".join(json.dumps(row) + "\n" for row in rows)
        (folder / "mt_bench" / name).write_text(text)
    return folder


@pytest.fixture
def our_questions(questions: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """`questions`, as `COPYSPEC_DATA_DIR` of this process."""
    monkeypatch.setenv("COPYSPEC_DATA_DIR", str(questions))
    return questions


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    chromium = shutil.which("chromium") or shutil.which("chromium-browser")
    if chromium is None:
        pytest.skip("NOT TESTED without chromium: apt-get install chromium")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        yield started
        started.close()
