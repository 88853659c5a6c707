"""Evaluations that copy from the answers of earlier ones: found, counted, and never their own."""

import json
import logging
import shutil
from pathlib import Path
from typing import Any

import pytest
from in_process import evaluate_into, rows_in

from copyspec_eval.cli import main
from copyspec_eval.errors import OptionError
from copyspec_eval.records import TurnRecord
from copyspec_eval.types import CopyOrigin

pytestmark = pytest.mark.usefixtures("our_questions")


@pytest.fixture
def base(byte_model: Path, tmp_path: Path) -> Path:
    """A run of the task, from plain decoding."""
    evaluate_into(tmp_path / "base", byte_model, "dtype=float32,drafter=none")
    return tmp_path / "base"


def forwards(rows: list[TurnRecord]) -> int:
    return sum(row.counts.num_forwards or 0 for row in rows)


def accepted(rows: list[TurnRecord]) -> int:
    """Tokens that were copied from earlier runs."""
    drafts = [(row.counts.drafts or {}).get("earlier") for row in rows]
    return sum(of_source.num_accepted for of_source in drafts if of_source)


def drafting(folder: Path) -> dict[str, Any]:
    [run] = json.loads((folder / "manifest.json").read_text())["runs"]
    return dict(run["spec"]["drafting"])


@pytest.mark.parametrize(
    "switches", ["", "tree=true,exact=false", pytest.param("paired=true", marks=pytest.mark.slow)]
)
def test_the_same_answers_in_fewer_forwards(byte_model, tmp_path, base, switches, capsys):
    folder = tmp_path / "seeded"
    evaluate_into(folder, byte_model, f"dtype=float32,store={base},{switches}")
    rows = rows_in(folder)
    assert len(rows) == 12
    label = "suffix + store=base + tree" if "tree" in switches else "suffix + store=base"
    assert {row.drafter for row in rows} == {label}
    assert accepted(rows) > sum(row.counts.num_tokens or 0 for row in rows) / 2
    assert CopyOrigin.EARLIER in {span.source for row in rows for span in row.spans}
    assert forwards(rows) < forwards(rows_in(base)) / 4
    assert main(["compare", str(base), str(folder)]) == 0
    assert drafting(folder)["store"] == str(base)
    assert len(drafting(folder)["store_sha256"]) == 12
    assert main(["report", str(base), str(folder)]) == 0
    assert "were copied from answers of earlier runs" in capsys.readouterr().out


def test_where_token_ids_say_nothing_the_text_is_tokenised(byte_model, tmp_path, base):
    """Where a backend reports none, and where they are another tokenizer's."""
    changes: list[Any] = [lambda ids: None, lambda ids: [65 + token % 26 for token in ids]]
    rows = [json.loads(line) for line in (base / "turns.jsonl").read_text().splitlines()]
    digests = set()
    for number, change in enumerate(changes):
        changed = [row | {"token_ids": change(row["token_ids"])} for row in rows]
        store, folder = tmp_path / f"rows{number}.jsonl", tmp_path / f"seeded{number}"
        store.write_text("".join(json.dumps(row) + "\n" for row in changed))
        evaluate_into(folder, byte_model, f"dtype=float32,store={store}")
        assert accepted(rows_in(folder)) > 0
        assert forwards(rows_in(folder)) < forwards(rows_in(base)) / 2
        digests.add(drafting(folder)["store_sha256"])
    assert len(digests) == 1, "the same texts are the same tokens"


def test_several_runs(byte_model, tmp_path, base):
    stores = [str(base), str(shutil.copytree(base, tmp_path / "again"))]
    for number, store in enumerate((":".join(stores), stores)):
        folder = tmp_path / f"seeded{number}"
        evaluate_into(folder, byte_model, {"dtype": "float32", "store": store})
        assert {row.drafter for row in rows_in(folder)} == {"suffix + store=base:again"}
        assert accepted(rows_in(folder)) > 0


def test_a_run_never_copies_from_itself(byte_model, tmp_path, base):
    before = (base / "turns.jsonl").read_bytes()
    (tmp_path / "link").symlink_to(base)
    for store in (base, base / "turns.jsonl", tmp_path / "link", base / ".." / "base"):
        with pytest.raises(OptionError, match=r"store=.*: this run writes there; give it"):
            evaluate_into(base, byte_model, f"store={store}")
    assert (base / "turns.jsonl").read_bytes() == before


def test_runs_of_other_documents_are_refused_before_anything_is_answered(
    byte_model, tmp_path, base, caplog
):
    with (base / "turns.jsonl").open("a") as file:
        file.write('{"torn')
    message = r"store=.*base: no answer to a document of mt_bench; na"
    with caplog.at_level(logging.WARNING, "lm_eval"), pytest.raises(OptionError, match=message):
        evaluate_into(tmp_path / "seeded", byte_model, f"store={base}", tasks=["mt_bench"])
    assert not (tmp_path / "seeded").exists()
    assert "unreadable rows left out: 1" in caplog.text, "a torn row is a warning"


def test_traces_are_found_by_the_number_of_the_document(byte_model, tmp_path, base):
    rows, traces = rows_in(base), tmp_path / "traces.jsonl"
    common: dict[str, Any] = {"category": "c", "prompt_ids": []}
    matches = [{"id": row.doc_id, "turn": row.turn, "answer_ids": row.token_ids} for row in rows]
    traces.write_text("".join(json.dumps(common | each) + "\n" for each in matches))
    evaluate_into(tmp_path / "seeded", byte_model, f"dtype=float32,store={traces}")
    seeded = rows_in(tmp_path / "seeded")
    assert {row.drafter for row in seeded} == {"suffix + store=traces.jsonl"}
    assert forwards(seeded) < forwards(rows) / 4
    traces.write_text(traces.read_text().replace('"answer_ids": [', '"answer_ids": [100000, '))
    with pytest.raises(OptionError, match=r"token 100000 of document \d+ is not in the vocabulary"):
        evaluate_into(tmp_path / "refused", byte_model, f"store={traces}")
