"""A run's folder, damaged at random: every command ends soon, with a note or in one line."""

import random
import shutil
import signal
import string
import traceback
from collections.abc import Iterator
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
from damaged_runs import commands, damage, snapshot, sound_run
from judge_server import write_judge_data
from tqdm.contrib.concurrent import thread_map

from copyspec_eval.cli import main
from copyspec_eval.scoring.chat import ChatModel


class _TooLongError(BaseException):
    """A command waits for something; no handler of `Exception` takes it."""


def too_long(*_: object) -> None:
    raise _TooLongError


@pytest.fixture(autouse=True)
def surroundings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A judge that answers without a server, and an alarm."""
    monkeypatch.setenv("COPYSPEC_DATA_DIR", str(write_judge_data(tmp_path / "data")))
    monkeypatch.setattr(ChatModel, "ask", lambda *_: "[[5]] [[A]]")
    without_bar = partial(thread_map, disable=True)
    monkeypatch.setattr("copyspec_eval.scoring.chat.thread_map", without_bar)
    before = signal.signal(signal.SIGALRM, too_long)
    yield
    signal.signal(signal.SIGALRM, before)


def outcome(command: list[str], capsys: pytest.CaptureFixture[str]) -> Iterator[str]:
    """What is wrong with how a command ends; nothing if all is well."""
    capsys.readouterr()
    signal.alarm(30)
    try:
        code: Any = main(command)
    except BaseException:
        yield "".join(traceback.format_exc().splitlines(keepends=True)[-14:])
        return
    finally:
        signal.alarm(0)
    printed = capsys.readouterr()
    lines = printed.err.split("\n")[:-1]
    errors = [line for line in lines if line.startswith("copyspec-eval: error: ")]
    for line in {*lines} - {*errors}:
        if not line.startswith(("note: ", "/")):
            yield f"a line of no kind: {line!r}"
    # Without an error, 1 is what a command found: answers that differ, or are not judged.
    says = code == 1 and command[0] in ("compare", "judge", "redundant") and printed.out
    if code not in (0, 1) or len(errors) != (code and not says):
        yield f"exit code {code}, errors {errors}"
    text = printed.out + printed.err
    if not text.replace("\n", "").isprintable():
        yield f"not printable: {sorted({*text} - {*string.printable})} {text[:400]!r}"


def findings(
    seed: int, tmp_path: Path, sound: tuple[Path, Path], capsys: pytest.CaptureFixture[str]
) -> Iterator[str]:
    source = random.Random(seed)
    place, neighbour = tmp_path / "here", tmp_path / "beside"
    for folder in (place, neighbour):
        shutil.rmtree(folder, ignore_errors=True)
    damaged = place / source.choice(("run", "run", "run", "r\nu\x1b[1mn", "r\udcffn", "r" * 250))
    shutil.copytree(sound[0], neighbour)
    (neighbour / "file").write_text("a file\n")
    (neighbour / "folder").mkdir()
    shutil.copytree(sound[0], damaged)
    damage(source, damaged, neighbour)
    out = source.choice((damaged, damaged, place / "out", place / ("o" * 300)))
    outside = [snapshot(folder) for folder in (neighbour, *sound)]
    for command in commands(damaged, *sound, out):
        before = snapshot(place)
        name = f"seed {seed}: {' '.join(command[:2])}"
        yield from (f"{name}: {each}" for each in outcome(command, capsys))
        if [snapshot(folder) for folder in (neighbour, *sound)] != outside:
            yield f"{name}: changed what is beside"
            return
        writes = damaged if command[0] == "judge" else out
        changed = {path for path, _ in before.items() ^ snapshot(place).items()}
        stray = {path for path in changed if writes not in (place / path, *(place / path).parents)}
        if stray:
            yield f"{name}: changed {stray}"


@pytest.mark.parametrize("count", [4, pytest.param(1000, marks=pytest.mark.slow)])
def test_damaged_runs(count, tmp_path, capsys):
    other = sound_run(tmp_path / "other", documents=(2, 3), run_id="run-2")
    sound = sound_run(tmp_path / "sound"), other
    for command in commands(sound[0], *sound, tmp_path / "out"):
        assert not main(command), command
    trials = (findings(seed, tmp_path / "trial", sound, capsys) for seed in range(count))
    wrong = [*chain.from_iterable(trials)]
    assert not wrong, "\n".join([f"{len(wrong)} findings", *wrong[:200]])
