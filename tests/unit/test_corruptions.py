"""A run's files, damaged at random: every command ends soon, with a note or in one line."""

from __future__ import annotations

import json
import random
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from judge_server import write_judge_data
from recorded_runs import manifest, turn, write_run
from run_folders import sample, write_log

from copyspec_eval.cli import main
from copyspec_eval.scoring.judge import Judge

Damage = Callable[[random.Random, bytes], bytes]

ODD_VALUES: tuple[Any, ...] = (
    *(None, True, -1, 0, 10**7, 10**30, -(10**30), 1e308, -0.5, "", "x" * 9999, "\u2028"),
    *([], {}, [[]], [10**7, 0], {"a": {"b": []}}, [None], "nan", "\x00", "=1+1", [[10**7, 0]]),
)


def flipped(source: random.Random, content: bytes) -> bytes:
    damaged = bytearray(content)
    for _ in range(source.choice((1, 5, 50))):
        damaged[source.randrange(len(damaged))] = source.randrange(256)
    return bytes(damaged)


def cut(source: random.Random, content: bytes) -> bytes:
    start, end = sorted(source.choices(range(len(content) + 1), k=2))
    return source.choice((content[:end], content[start:], content[:start] + content[end:]))


def repeated(source: random.Random, content: bytes) -> bytes:
    lines = content.splitlines(keepends=True)
    source.shuffle(lines)
    return b"".join(lines + lines[: source.randrange(len(lines) + 1)])


def with_other_values(source: random.Random, content: bytes) -> bytes:
    """Some values of one line's JSON, or of the whole file's, are others."""
    try:
        return json.dumps(_changed(source, json.loads(content))).encode()
    except ValueError:
        lines = content.splitlines()
    number = source.randrange(len(lines))
    lines[number] = json.dumps(_changed(source, json.loads(lines[number]))).encode()
    return b"\n".join(lines) + b"\n"


def _changed(source: random.Random, value: Any) -> Any:
    if source.random() < 0.08:
        return source.choice(ODD_VALUES)
    if isinstance(value, dict):
        changed = {name: _changed(source, item) for name, item in value.items()}
        if changed and source.random() < 0.05:
            del changed[source.choice(sorted(changed))]
        return changed
    return [_changed(source, item) for item in value] if isinstance(value, list) else value


def replaced(source: random.Random, content: bytes) -> bytes:
    return source.choice(
        (
            *(b"", b"\n", b"null", b"[]", b"{}", b"\x00" * 99, b"[" * 10**5, b"9" * 10**5),
            *(content.decode().encode("utf-16"), b"\xef\xbb\xbf" + content, b"\xff\xfe\xfd"),
            *(b'{"a":' * 10**5, b'"' + b"x" * 10**6 + b'"', b"1e999\n" * 99, b"NaN\n"),
        )
    )


DAMAGES: tuple[Damage, ...] = (flipped, cut, repeated, with_other_values, replaced)


def sound_run(folder: Path) -> Path:
    rows = [turn("a", doc, number) for doc in range(4) for number in (1, 2)]
    write_run(folder, rows, manifest("a"))
    samples = [sample(doc, ["p", "q"], [["A"], ["B"]], acc=1.0) for doc in range(4)]
    docs = ({"question_id": 9 + doc, "category": "x", "turns": ["p", "q"]} for doc in range(4))
    logged = [row | {"doc": doc} for row, doc in zip(samples, docs, strict=True)]
    write_log(folder, logged, task="mt_bench", model_name_sanitized="M")
    return folder


def judge(folder: Path) -> list[str]:
    return ["judge", str(folder), "--model", "J", "--base-url", "http://127.0.0.1:9"]


@pytest.fixture(autouse=True)
def judging(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A judge that rates without a server."""
    monkeypatch.setenv("COPYSPEC_DATA_DIR", str(write_judge_data(tmp_path / "data")))
    monkeypatch.setattr(Judge, "rate", lambda *_: ("[[5]]", 5.0))


@pytest.mark.parametrize("count", [30, pytest.param(1000, marks=pytest.mark.slow)])
def test_damaged_runs(count: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sound = sound_run(tmp_path / "sound")
    assert main(["report", str(sound)]) == 0
    assert main(["compare", str(sound), str(sound)]) == 0
    assert main(judge(sound)) == 0
    assert list(sound.rglob("J_single.jsonl"))
    for seed in range(count):
        source = random.Random(seed)
        damaged = tmp_path / "damaged"
        shutil.rmtree(damaged, ignore_errors=True)
        shutil.copytree(sound, damaged)
        files = sorted(path for path in damaged.rglob("[!.]*.json*") if path.is_file())
        for path in source.sample(files, source.choice((1, 1, 2))):
            if source.random() < 0.03:
                path.unlink()
                path.mkdir()
            else:
                path.write_bytes(source.choice(DAMAGES)(source, path.read_bytes()))
        for command in (
            ["report", str(damaged), "--out", str(tmp_path / "out")],
            ["compare", str(damaged), str(sound)],
            judge(damaged),
        ):
            capsys.readouterr()
            started = time.monotonic()
            code = main(command)
            assert time.monotonic() - started < 5, f"seed {seed}"
            said = capsys.readouterr().err.splitlines()
            assert code in (0, 1), f"seed {seed}"
            if code and command[0] != "compare":
                assert len(said) == 1, f"seed {seed}: {said}"
                assert said[0].startswith("copyspec-eval: error: "), f"seed {seed}"
