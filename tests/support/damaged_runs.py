"""A run's folder, damaged at random: its bytes, its values, and what is there instead."""

import hashlib
import json
import os
import random
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from recorded_runs import manifest, turn, write_run
from run_folders import sample, write_log
from sample_rows import SPEC

TASK, PROGRAMS = "mt_bench", "humaneval_evalplus"

ODD_VALUES: tuple[Any, ...] = (
    *(None, True, -1, 0, 10**7, 10**30, -(10**30), 1e308, -0.5, "", "x" * 9999, "\u2028"),
    *([], {}, [[]], [10**7, 0], {"a": {"b": []}}, [None], "nan", "\x00", "=1+1", [[10**7, 0]]),
    *("\ud800", "a\udfffb", {"\ud800": 1}, "\x1b[2J\x1b]0;x\x07", "a\nb", float("nan"), 10**400),
)


def sound_run(folder: Path, documents: tuple[int, ...] = (0, 1), run_id: str = "run-1") -> Path:
    """A shard of four documents, with sample logs, results, programs and traces."""
    samples = {TASK: list(documents), PROGRAMS: list(documents[:1])}
    made = manifest(run_id, evaluation=SPEC.evaluation | {"samples": samples})
    rows = [turn(run_id, doc, number, task=TASK) for doc in documents for number in (1, 2)]
    rows.append(turn(run_id, documents[0], 1, task=PROGRAMS))
    write_run(folder, rows, made, cut_short=[run_id])
    asked = {"category": "x", "turns": ["p", "q"]}
    conversations = [
        sample(doc, ["p", "q"], [["A"], ["B"]], acc=1.0)
        | {"doc": {"question_id": 9 + doc, **asked}}
        for doc in documents
    ]
    program = sample(documents[0], ["p"], [["def f(): pass"]], acc=1.0)
    program["doc"] = {"task_id": "HumanEval/0", "prompt": "def f():", "entry_point": "f"}
    date = f"2026-01-01T00-00-0{run_id[-1]}.000001"
    for task, log in ((TASK, conversations), (PROGRAMS, [program])):
        write_log(folder, log, date, task, run_id, original=4, model_name_sanitized="M")
    trace = {"category": "x", "turn": 1, "prompt_ids": [1, 2, 3], "answer_ids": [1, 2]}
    for name, key, row in (("traces", "id", trace), ("questions", "question_id", asked)):
        text = "".join(json.dumps({key: doc, **row}) + "\n" for doc in documents)
        (folder / f"{name}.jsonl").write_text(text)
    return folder


def damage(source: random.Random, folder: Path, neighbour: Path) -> None:
    """Change one or two things in `folder`; links lead into `beside`, which has a copy of it."""
    for _ in range(source.choice((1, 1, 2))):
        everything = sorted(path for path in folder.rglob("[!.]*") if not path.is_symlink())
        files = [path for path in everything if path.is_file() and path.stat().st_size]
        if source.random() < 0.55 and files:
            path = source.choice(files)
            path.write_bytes(_damaged(source, path.read_bytes()))
        elif source.random() < 0.6 and everything:
            path = source.choice(everything)
            source.choice(_OF_FILES)(path, neighbour / path.relative_to(folder))
        else:
            path = folder / source.choice(_OUTPUTS)
            if _makes_room(path, folder):
                source.choice(_OF_FILES[:8])(path, neighbour / source.choice(("file", "folder")))


def snapshot(folder: Path) -> dict[str, tuple[int, object]]:
    """Of everything below `folder` its kind and permissions, and a checksum or a link's target."""

    def content(path: Path) -> object:
        if path.is_symlink():
            return path.readlink()
        return hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else None

    paths = [*folder.rglob("*")]
    return {str(path.relative_to(folder)): (path.lstat().st_mode, content(path)) for path in paths}


def _damaged(source: random.Random, content: bytes) -> bytes:
    flipped, lines = bytearray(content), content.splitlines(keepends=True)
    for _ in range(source.choice((1, 5, 50))):
        flipped[source.randrange(len(flipped))] = source.randrange(256)
    start, end = sorted(source.choices(range(len(content) + 1), k=2))
    source.shuffle(lines)
    repeated = lines + lines[: source.randrange(len(lines) + 1)]
    replaced = (
        *(b"", b"\n", b"null", b"[]", b"{}", b"\x00" * 99, b"[" * 10**5, b"9" * 10**5),
        *(content.decode("latin-1").encode("utf-16"), b"\xef\xbb\xbf" + content, b"\xff\xfe"),
        *(b'{"a":' * 10**5, b'"' + b"x" * 10**6 + b'"', b"1e999\n" * 99, b"NaN\n"),
        *(b'{"a": ' + b"[" * 900 + b"]" * 900 + b"}\n", b'{"a": "\\ud800"}\n', content + b"{"),
    )
    shortened = content[:end], content[start:], content[:start] + content[end:]
    others = 2 * [_with_other_values(source, content)]
    kinds = bytes(flipped), source.choice(shortened), b"".join(repeated), source.choice(replaced)
    return source.choice((*kinds, *others))


def _with_other_values(source: random.Random, content: bytes) -> bytes:
    """Some values of one line's JSON, or of the whole file's, are others."""
    try:
        return json.dumps(_changed(source, json.loads(content))).encode()
    except ValueError:
        lines = content.splitlines()
    number = source.randrange(len(lines))
    try:
        lines[number] = json.dumps(_changed(source, json.loads(lines[number]))).encode()
    except ValueError:  # damaged before
        lines[number] = b"\\ud800"
    return b"\n".join(lines) + b"\n"


def _changed(source: random.Random, value: Any) -> Any:
    if source.random() < 0.08:
        return source.choice(ODD_VALUES)
    if isinstance(value, dict):
        changed = {name: _changed(source, item) for name, item in value.items()}
        if changed and source.random() < 0.05:
            del changed[source.choice(list(changed))]
        return changed
    return [_changed(source, item) for item in value] if isinstance(value, list) else value


def _cleared(path: Path) -> Path:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
    return path


def _hard_linked(path: Path, other: Path) -> None:
    if other.is_file():
        _cleared(path).hardlink_to(other)


_OF_FILES: tuple[Callable[[Path, Path], Any], ...] = (
    *(2 * [lambda path, other: _cleared(path).symlink_to(other)]),
    lambda path, other: _cleared(path).symlink_to(other.parent / "nowhere"),
    lambda path, _: _cleared(path).symlink_to(path.name),
    _hard_linked,
    lambda path, _: _cleared(path).symlink_to("/dev/zero"),
    lambda path, _: os.mkfifo(_cleared(path)),
    lambda path, _: _cleared(path).mkdir(),
    lambda path, _: path.chmod(0),
    lambda path, _: path.rename(path.with_name(f"{path.name[:3]}\n\x1b[1m{path.name[3:]}")),
    lambda path, _: path.rename(path.with_name("turns\udcff.jsonl")),
    lambda path, _: path.rename(path.with_stem(path.stem + "_" * (250 - len(path.name)))),
)
"""Of a path and another one, which is the same outside; the last four need that it exists."""

_JUDGED = f"fastchat/{TASK}/model_judgment"
_OUTPUTS = (
    *("LEADERBOARD.md", "leaderboard.json", "report.html", "report.html.partial", ".partial"),
    *(".lock", "turns.parquet", "M.jsonl", "fastchat", f"fastchat/{TASK}", _JUDGED),
    *(f"{TASK}/model_answer", f"{TASK}/model_answer/M.jsonl", "leaderboard.csv"),
    *(f"{_JUDGED}/{name}" for name in (".lock", "J_single.jsonl", ".J_single.jsonl.lock")),
    *("redundant.jsonl", ".redundant.jsonl.lock"),
)
"""What commands write to, below the run's folder or a folder that `--out` names."""


def _makes_room(path: Path, folder: Path) -> bool:
    """Whether `path` can be made without going through a link or a file."""
    parents = [folder / parent for parent in reversed(path.relative_to(folder).parents)]
    for parent in parents:
        if not os.path.lexists(parent):
            parent.mkdir()
        if parent.is_symlink() or not parent.is_dir():
            return False
    return True


def commands(damaged: Path, sound: Path, shard: Path, out: Path) -> Iterator[list[str]]:
    """Every command that reads a run: beside the same run undamaged, and another shard of it."""
    here = ["--model", "J", "--base-url", "http://127.0.0.1:9"]
    run, to = str(damaged), ["--out", str(out)]
    yield ["report", run, *to]
    yield ["report", run, str(shard), "--format", "json"]
    yield ["compare", run, str(sound)]
    yield ["compare", run, "--json"]
    yield from (["export", kind, run, *to] for kind in ("fastchat", "evalplus", "turns"))
    replay = ["replay", "--drafter", "suffix", "--traces", f"{run}/traces.jsonl", "--json"]
    yield replay
    yield [*replay, "--drafter-args", f"store={run}"]
    yield ["redundant", f"{run}/questions.jsonl", "--out", str(out / "redundant.jsonl"), *here]
    yield ["judge", run, *here]
    yield ["judge", run, "--against", str(sound), *here]
