"""Commands of README and docs/ that are marked as tested run as printed; links lead somewhere."""

import json
import os
import re
import shlex
import subprocess
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from byte_model import save_byte_model

from copyspec_eval.harness.options import OUR_OPTIONS

REPOSITORY = Path(__file__).resolve().parents[2]
PAGES = [REPOSITORY / "README.md", *sorted((REPOSITORY / "docs").glob("*.md"))]
TEXTS = {page.stem: page.read_text("utf-8") for page in PAGES}
# Those of one page after the other, in the order in which a reader meets them.
IN_ORDER = "".join(TEXTS[name] for name in ("README", "measuring", "drafters"))


def blocks(mark: str, text: str) -> list[str]:
    """Commands under a mark."""
    return re.findall(rf"<!-- {mark} -->\n```bash\n(.+?)```", text, re.DOTALL)


BLOCKS = blocks("tested", IN_ORDER)
RANKS, SHARDS = blocks("tested, slowly", IN_ORDER)
[SLURM] = blocks("shard.sh", IN_ORDER)
REFERENCES = blocks("reference", TEXTS["paper"])
[QUICKSTART] = blocks("what the quickstart runs", IN_ORDER)
WRITES = [
    "runs/a/turns.jsonl",
    "runs/paired/turns.jsonl",
    "runs/arms/turns.jsonl",
    "runs/hf",
    "runs/lookup/turns.jsonl",
    "runs/report/report.html",
    None,
    None,
    "runs/b/turns.jsonl",
]


@pytest.fixture
def environment(questions: Path, tmp_path: Path) -> dict[str, str]:
    """That in which the commands run, with a small model."""
    save_byte_model(tmp_path / "model", eos_factor=1.7)
    return {
        **os.environ,
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "MODEL": str(tmp_path / "model"),
        "COPYSPEC_DATA_DIR": str(questions),
    }


def run(block: str, folder: Path, environment: dict[str, str]) -> None:
    result = subprocess.run(
        ["bash", "-euc", block], cwd=folder, env=environment, capture_output=True, text=True
    )
    assert result.returncode == 0, f"{block}\n{result.stderr}"


def test_no_page_has_marked_commands_that_are_not_run():
    everything = "".join(TEXTS.values())
    assert everything.count("<!-- tested") == len(BLOCKS) + len((RANKS, SHARDS))


def anchors(page: Path) -> set[str]:
    """What GitHub calls the headings of a page."""
    headings = re.findall(r"^#+ (.+)$", page.read_text("utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_links_lead_somewhere(page):
    for link in re.findall(r"\]\((?!https?:)([^)]+)\)", page.read_text("utf-8")):
        name, _, anchor = link.partition("#")
        target = page.parent / name if name else page
        assert target.exists(), link
        assert not anchor or anchor in anchors(target), link


def test_every_page_is_in_the_readmes_list():
    for page in PAGES[1:]:
        assert f"](docs/{page.name})" in TEXTS["README"]


def test_commands_run_as_printed(environment, tmp_path):
    """In one folder and in their order: later ones read what earlier ones wrote."""
    trace = {"category": "x", "turn": 1, "prompt_ids": [1, 2], "answer_ids": [1, 2]}
    (tmp_path / "traces.jsonl").write_text(json.dumps(trace))
    for block, written in zip(BLOCKS, WRITES, strict=True):
        run(block, tmp_path, environment)
        assert written is None or (tmp_path / written).exists()


@pytest.mark.slow  # each lm_eval takes ten seconds to start
def test_shards_are_reported_as_printed(environment, tmp_path):
    run(SHARDS, tmp_path, environment)
    assert {path.parent.name for path in tmp_path.glob("runs/split/*/turns.jsonl")} == {"0", "1"}


def test_the_references_commands_have_tasks_and_options_that_exist():
    tasks = {path.stem for path in (REPOSITORY / "tasks").rglob("*.yaml")}
    assert len(REFERENCES) == 6
    for block in REFERENCES:
        [words] = commands(block, "runs/")
        named = dict(pairwise(words))
        assert named["--tasks"] in tasks
        options = {pair.partition("=")[0] for pair in named["--model_args"].split(",")}
        assert options <= {"pretrained", *OUR_OPTIONS}


@pytest.mark.slow
@pytest.mark.parametrize("number", range(6))
def test_the_references_commands_run_in_ours(environment, data_dir, tmp_path, number):
    """As printed, but for two documents and short answers."""
    block = REFERENCES[number].replace(" --limit 101", "").replace(" --limit 104", "")
    brief = block.rstrip() + " --limit 2 --gen_kwargs max_gen_toks=16\n"
    data = {"COPYSPEC_DATA_DIR": str(data_dir), "DRAFT": environment["MODEL"]}
    run(brief, tmp_path, environment | data)
    [file] = tmp_path.glob("runs/*/turns.jsonl")
    assert {row["doc_id"] for row in lines(file)} == {0, 1}


@pytest.mark.slow
def test_ranks_write_into_one_folder_as_printed(environment, tmp_path):
    # Without several GPUs, accelerate has to be told to start several processes on the CPU.
    assert "launch --num_processes 2 " in RANKS
    on_cpu = environment | {"ACCELERATE_USE_CPU": "true"}
    run(RANKS.replace("launch ", "launch --multi_gpu "), tmp_path, on_cpu)
    rows = [
        row for path in (tmp_path / "runs" / "ranks").glob("turns*.jsonl") for row in lines(path)
    ]
    assert {row["rank"] for row in rows} == {0, 1}
    assert {(row["doc_id"], row["turn"]) for row in rows} == {(0, 1), (0, 2), (1, 1), (1, 2)}


@pytest.mark.slow
def test_the_tasks_of_a_slurm_array_share_the_documents(environment, tmp_path):
    assert "last=79 " in SLURM
    script = SLURM.replace("last=79 ", "last=2 ")
    for number in (0, 1):
        of_array = {"SLURM_ARRAY_TASK_ID": str(number), "SLURM_ARRAY_TASK_COUNT": "2"}
        run(script, tmp_path, environment | of_array)
    rows = [row for path in tmp_path.glob("runs/split/*/turns.jsonl") for row in lines(path)]
    assert sorted({row["doc_id"] for row in rows}) == [0, 1, 2]


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text("utf-8").splitlines()]


def commands(text: str, output: str) -> list[list[str]]:
    """The words of each command, where `output` is the folder of its output."""
    lines = text.replace("\\\n", "").replace(output, "OUTPUT").splitlines()
    return [shlex.split(line, comments=True) for line in lines]


def test_the_quickstart_is_what_its_script_runs():
    """And the script has a test that runs it."""
    script = (REPOSITORY / "scripts" / "quickstart").read_text("utf-8")
    [given] = [
        words[words.index("lm_eval") :] for words in commands(script, "$out") if "lm_eval" in words
    ]
    evaluate, report = commands(QUICKSTART, "results/quickstart")
    assert given == [*evaluate, "$@", ">OUTPUT/tables.md"]
    assert report in commands(script, "$out")
