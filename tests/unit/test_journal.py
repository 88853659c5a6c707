"""What was acknowledged is not lost, whatever happens, and a run that was cut short says so."""

import csv
import json
import os
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from multiprocessing import get_context
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from filelock import FileLock
from in_process import limited_files
from recorded_runs import manifest, turn, turns, write_run
from run_folders import sample, write_log

from copyspec_eval import journal
from copyspec_eval.cli import main
from copyspec_eval.errors import DataError
from copyspec_eval.manifest import RunManifest
from copyspec_eval.reports.recorded import read_recorded
from copyspec_eval.reports.runs import read_run

FORK = get_context("fork")  # it takes no time to import


def write(path: Path, name: str, count: int, acknowledged: int) -> None:
    for number in range(count):
        row = {"writer": name, "number": number, "text": "x" * 300}
        journal.append(path, json.dumps(row).encode())
        os.write(acknowledged, b"%d\n" % number)


def numbers_by(name: str, path: Path) -> list[int]:
    rows = []
    for _, line in journal.lines(path):
        with suppress(ValueError):  # torn by a kill
            rows.append(json.loads(line))
    return [row["number"] for row in rows if row["writer"] == name]


def test_lines_come_back_and_blank_ones_do_not(tmp_path):
    path = tmp_path / "new" / "file.jsonl"
    journal.append(path, b"one")
    journal.append(path, "zwölf".encode())
    assert path.read_bytes() == b"one\n" + "zwölf".encode() + b"\n"
    path.write_bytes(b"one\r\n\n\ntwo")
    assert list(journal.lines(path)) == [(1, b"one"), (4, b"two")]
    journal.append(path, b"three")
    lines = [line for _, line in journal.lines(path)]
    assert lines == [b"one", b"two", b"three"], "a torn last line is never glued to the next"


def test_two_processes_lose_and_mix_nothing(tmp_path):
    path = tmp_path / "file.jsonl"
    with Path(os.devnull).open("wb") as unread:
        arguments = [(path, name, 300, unread.fileno()) for name in "ab"]
        writers = [FORK.Process(target=write, args=each) for each in arguments]
        for writer in writers:
            writer.start()
        for writer in writers:
            writer.join()
    assert [writer.exitcode for writer in writers] == [0, 0]
    assert len([*journal.lines(path)]) == 600
    for name in "ab":
        assert numbers_by(name, path) == list(range(300))


def test_kills_lose_nothing_that_was_acknowledged(tmp_path):
    path, num_kills = tmp_path / "file.jsonl", 30
    for attempt in range(num_kills):
        reading, writing = os.pipe()
        writer = FORK.Process(target=write, args=(path, str(attempt), 10**6, writing))
        writer.start()
        os.close(writing)
        time.sleep(0.002 * (attempt % 10))
        writer.kill()
        writer.join()
        with os.fdopen(reading) as acknowledged:
            whole = [line for line in acknowledged if line.endswith("\n")]
        journal.append(path, b'{"writer": "between", "number": 0}')
        actual = numbers_by(str(attempt), path)
        assert actual[: len(whole)] == list(range(len(whole)))
        assert len(actual) <= len(whole) + 1, "at most the row under way was written unacknowledged"
    assert len(numbers_by("between", path)) == num_kills


def test_a_full_disk_spoils_no_line_and_no_file(tmp_path):
    """The fourth line of 300 bytes would pass the limit of 1,000: the kernel takes 100 of them."""
    lines, other = tmp_path / "file.jsonl", tmp_path / "file.json"
    full = r"cannot be written \(File too large\); free space there"
    with limited_files(1000):
        for _ in range(3):
            journal.append(lines, b"x" * 299)
        with pytest.raises(DataError, match=full):
            journal.append(lines, b"x" * 299)
        with pytest.raises(DataError, match=full):
            journal.replace(other, "x" * 100_000)
        assert not other.exists()
        journal.replace(other, "whole")
        with pytest.raises(DataError, match=full):
            journal.replace(other, "x" * 100_000)
    assert lines.read_bytes() == (b"x" * 299 + b"\n") * 3
    assert other.read_text() == "whole"
    assert {path.name for path in tmp_path.iterdir()} == {".lock", "file.json", "file.jsonl"}


def test_what_cannot_be_written_is_one_line(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(DataError, match=r"file: cannot be written \(File exists\)"):
        journal.append(tmp_path / "file" / "turns.jsonl", b"x")
    with pytest.raises(DataError, match="cannot be written"), journal.locked(Path("/proc/nowhere")):
        pass
    with pytest.raises(DataError, match=r"nowhere: cannot be read \(No such file"):
        journal.read(tmp_path / "nowhere")
    (tmp_path / ".rows.jsonl.lock").mkdir()
    wrong = pytest.raises(DataError, match=r"\.rows\.jsonl\.lock: cannot be written")
    with wrong, journal.alone(tmp_path / "rows.jsonl"):
        pass


def test_a_file_system_without_locks_is_written_all_the_same(tmp_path, monkeypatch):
    monkeypatch.setattr(FileLock, "acquire", mock.Mock(side_effect=NotImplementedError))
    journal.append(tmp_path / "file", b"x")
    assert (tmp_path / "file").read_bytes() == b"x\n"


def test_a_lock_that_another_holds_is_named(tmp_path, monkeypatch):
    monkeypatch.setattr(journal, "WAIT_SECONDS", 0.1)
    rows = tmp_path / "rows.jsonl"
    held = pytest.raises(DataError, match=r"/\.lock: another process holds it .* or remove the fi")
    with FileLock(tmp_path / ".lock"), held:
        journal.append(rows, b"x")
    busy = pytest.raises(DataError, match=r"another process is .* remove .*\.rows\.jsonl\.lock")
    with journal.alone(rows), busy, journal.alone(rows):
        pass


@pytest.mark.parametrize("name", ["symbolic", "dangling", "hard", "pipe"])
def test_nothing_is_written_through_a_link(name, tmp_path):
    elsewhere, folder = tmp_path / "elsewhere", tmp_path / "folder"
    elsewhere.write_bytes(b"theirs")
    folder.mkdir()
    (folder / "symbolic").symlink_to(elsewhere)
    (folder / "dangling").symlink_to(tmp_path / "nowhere")
    (folder / "hard").hardlink_to(elsewhere)
    (folder / ".partial").symlink_to(elsewhere)
    os.mkfifo(folder / "pipe")
    with pytest.raises(DataError, match=rf"{name}: (cannot be written|is a link or not)"):
        journal.append(folder / name, b"ours")
    journal.replace(folder / name, "ours")
    assert (folder / name).read_bytes() == b"ours"
    assert elsewhere.read_bytes() == b"theirs"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["elsewhere", "folder"]


def test_folders_below_an_output_folder_are_no_links(tmp_path):
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "out").symlink_to(tmp_path / "elsewhere")
    made = journal.subfolder(tmp_path / "out", "a", "b")
    assert made.is_dir(), "the user may name a link"
    (made / "c").symlink_to(tmp_path)
    with pytest.raises(DataError, match=r"a/b/c: is a link; remove it"):
        journal.subfolder(tmp_path / "out", "a", "b", "c", "d")
    assert not (tmp_path / "d").exists()


@pytest.mark.parametrize("name", ["pipe", "/dev/zero", "."])
@pytest.mark.parametrize("read", [journal.read, lambda path: [*journal.lines(path)]])
def test_what_is_no_file_is_not_read(name: str, read: Callable[[Path], object], tmp_path: Path):
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(DataError, match=r"(not a regular file|cannot be read .*); check the path"):
        read(tmp_path / name)


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b'{"a": "\\ud800"}', "lone surrogate"),
        (b'{"\\uDFFF": 1}', "lone surrogate"),
        (b"[" * 10**5, "nested too deeply"),
        (b"\xff", "not UTF-8"),
        (b"9" * 10**5, "4300 digits"),
        (b"{", "Expecting"),
    ],
    ids=["value", "name", "nested", "bytes", "digits", "cut"],
)
def test_json_that_cannot_be_read(content, reason):
    with pytest.raises(ValueError, match=reason):
        journal.parsed(content)
    assert journal.parsed(b'["\\ud83d\\ude80"]') == ["\U0001f680"], "whole characters are read"


def asked(run_id: str, num_answers: int = 8, **changes: Any) -> RunManifest:
    return replace(manifest(run_id, **changes), num_answers=num_answers)


def cut_short(folder: Path) -> list[str]:
    return list(read_recorded(folder).cut_short)


def note(folder: Path, run_id: str, answers: str) -> str:
    start = f"{folder}/turns.jsonl: run {run_id} was cut short or is still running"
    return f"{start} (answers: {answers}; results of lm-eval: none)"


def scored(folder: Path, config: dict[str, Any], *samples: dict[str, Any]) -> None:
    log = write_log(folder, [*samples], task="mt_bench")
    [path] = log.parent.glob("results_*.json")
    path.write_text(json.dumps(json.loads(path.read_text()) | {"config": config}))


def test_reports_and_comparisons_say_so(tmp_path, capsys):
    folder = write_run(tmp_path / "run", turns("a")[:5], asked("a"), cut_short={"a"})
    line = note(folder, "a", "5 of 8")
    for more in (["--out", str(tmp_path)], ["--format", "md"], ["--format", "json"]):
        assert main(["report", str(folder), *more]) == 0
        assert capsys.readouterr().out.count(line) == 1, more
    for name in ("LEADERBOARD.md", "leaderboard.json", "report.html"):
        assert "turns.jsonl: run a was cut short" in (tmp_path / name).read_text(), name
    assert main(["report", str(folder), "--format", "csv"]) == 0
    [row] = csv.DictReader(capsys.readouterr().out.splitlines())
    assert row["runs_cut_short"] == "1"
    whole = write_run(tmp_path / "whole", turns("a"), asked("a"))
    assert main(["compare", str(whole), str(folder)]) == 1
    printed = capsys.readouterr()
    assert printed.err == f"note: {line}\n"
    assert "3 missing" in printed.out


def test_compare_names_the_answers_that_it_leaves_out(tmp_path):
    """A later run into the folder of a whole one, and a task whose log a kill prevented."""
    rows = [*turns("a"), turn("a", 0, 1, task="other"), turn("b", 0, 1)]
    write_run(tmp_path, rows, asked("a"), asked("b"), cut_short={"b"})
    scored(tmp_path, {"copyspec": {"run_id": "a"}}, sample(0, ["p", "q"], [["A"], ["B"]]))
    assert read_run(tmp_path).notes == (
        f"{tmp_path}: answers to other are left out: they have no sample log",
        note(tmp_path, "b", "1 of 8") + "; its answers are left out: other runs have sample logs",
    )


def test_compare_reads_the_answers_beside_a_broken_manifest(tmp_path):
    write_run(tmp_path, turns("a"), asked("a"))
    (tmp_path / "manifest.json").write_text("[]")
    run = read_run(tmp_path)
    assert len(run.answers) == 8
    assert run.notes[0].startswith("whether the runs are whole is not known: ")


@pytest.mark.parametrize(
    ("rows", "run", "answers"), [(turns("a")[:5], manifest("a"), "5"), ([], asked("a"), "0 of 8")]
)
def test_what_is_known_of_a_run_that_was_cut_short_is_said(rows, run, answers, tmp_path):
    write_run(tmp_path, rows, run, cut_short={"a"})
    assert note(tmp_path, "a", answers) in read_recorded(tmp_path).notes


def test_a_later_run_of_the_same_settings_is_cut_short_itself(tmp_path):
    """How one continues another, `test_leaderboard` has."""
    first, rest, runs = turns("a")[:4], turns("b")[4:], (asked("a"), asked("b"))
    folder = write_run(tmp_path / "later", first + rest, *runs, cut_short={"b"})
    assert cut_short(folder) == ["b"]
    both = write_run(tmp_path / "both", first + rest[1:], *runs, cut_short={"a", "b"})
    assert read_recorded(both).notes == [note(both, "b", "7 of 8")], "those of both"


@pytest.mark.parametrize("other", [{"threads": 9}, {"tasks": {"other": {}}}], ids=str)
def test_a_later_run_of_other_settings_does_not(other, tmp_path):
    rows = [*turns("a")[:4], *turns("b")[4:]]
    write_run(tmp_path, rows, asked("a"), asked("b", **other), cut_short={"a"})
    assert cut_short(tmp_path) == ["a"]


@pytest.mark.parametrize("finished", [["one", "two"], ["two"]])
def test_a_task_that_lm_evals_cache_had_as_a_whole_is_continued_too(finished, tmp_path):
    """The later run was asked nothing of it, and has it in its results all the same."""
    of_one = [turn("a", doc, 1, task="one") for doc in range(2)]
    of_two = [turn(run_id, doc, 1, task="two") for run_id, doc in [("a", 0), ("b", 0), ("b", 1)]]
    runs = asked("a", tasks={"one": {}, "two": {}}), asked("b", tasks={"two": {}})
    folder = write_run(tmp_path, of_one + of_two, *runs, cut_short={"a", "b"})
    results = {"config": {"copyspec": {"run_id": "b"}}, "results": {task: {} for task in finished}}
    (folder / "results_b.json").write_text(json.dumps(results))
    run = read_recorded(folder)
    whole = finished == ["one", "two"]
    assert (cut_short(folder), len(run.records)) == (([], 4) if whole else (["a"], 5))


@pytest.mark.parametrize(
    ("config", "whole"),
    [
        ({}, True),
        ({"model": "copyspec-timed"}, True),
        ({"model": "hf"}, False),
        ({"copyspec": {"run_id": "a"}}, True),
        ({"copyspec": {"run_id": "b"}}, True),
        ({"copyspec": {"run_id": "0"}}, False),
    ],
    ids=str,
)
def test_results_of_another_run_do_not_make_one_whole(config, whole, tmp_path):
    """Those of a later run that was served from lm-eval's cache alone do."""
    write_run(tmp_path, turns("a"), asked("a"), cut_short={"a"})
    scored(tmp_path, config, sample(0, ["Q"], [["A"]], acc=0.5))
    run = read_recorded(tmp_path)
    assert (not run.cut_short, ("a", "mt_bench") in run.scores) == (whole, whole)


def test_results_beside_a_json_output_path_are_found(tmp_path):
    write_run(tmp_path, turns("a"), asked("a"))
    (tmp_path / "results_a.json").rename(tmp_path / "mine_2026-01-01T00-00-00.000001.json")
    assert cut_short(tmp_path) == []
