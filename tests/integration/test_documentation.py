"""What README and docs/ print and mark as tested runs as printed; the site is built from them."""

import json
import os
import re
import shlex
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import pytest
from byte_model import save_byte_model

from copyspec_eval.harness.options import OUR_OPTIONS
from copyspec_eval.paths import TINY, model_path

REPOSITORY = Path(__file__).resolve().parents[2]
PAGES = [REPOSITORY / "README.md", *sorted((REPOSITORY / "docs").glob("*.md"))]
TEXTS = {page.stem: page.read_text("utf-8") for page in PAGES}
NAMED = "Qwen/Qwen2.5-0.5B-Instruct"
# Those of one page after the other, in the order in which a reader meets them.
IN_ORDER = "".join(TEXTS[name] for name in ("README", "measuring", "drafters"))


def blocks(mark: str, text: str, language: str = "bash") -> list[str]:
    """Commands under a mark."""
    return re.findall(rf"<!-- {mark} -->\n```{language}\n(.+?)```", text, re.DOTALL)


BLOCKS = blocks("tested", IN_ORDER)
RANKS, SHARDS = blocks("tested, slowly", IN_ORDER)
[SLURM] = blocks("shard.sh", IN_ORDER)
REFERENCES = blocks("reference", TEXTS["paper"])
[QUICKSTART] = blocks("what the quickstart runs", IN_ORDER)
WRITES = [
    *(f"runs/{name}/turns.jsonl" for name in ("a", "paired", "arms", "lookup", "b")),
    *("runs/hf", "runs/report/report.html"),
]
WORDS = """
words() { printf '%s\\0' "$@" END; }
lm_eval() { words lm_eval "$@"; }
copyspec-eval() { words copyspec-eval "$@"; }
python() { words python "$@"; }
"""
TOGETHER = """
import json, sys
from lm_eval.__main__ import cli_evaluate
from copyspec_eval.cli import main
programs = {"lm_eval": cli_evaluate, "copyspec-eval": main}
programs["python"] = lambda: exec(sys.argv[2], {"__name__": "__main__"})
for sys.argv in json.load(sys.stdin):
    print("$", *sys.argv, file=sys.stderr, flush=True)
    if programs[sys.argv[0]]():
        sys.exit(1)
"""
"""Commands in one process, since each start of lm-eval takes longer than what it is to do."""


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


def run(block: str, folder: Path, environment: dict[str, str], *program: str) -> str:
    """What it prints; or what the program does that reads it."""
    command = program or ("bash", "-euc", block)
    done = subprocess.run(
        command, cwd=folder, env=environment, input=block, capture_output=True, text=True
    )
    assert done.returncode == 0, f"{block}\n{done.stderr}"
    return done.stdout


def in_one_process(block: str, folder: Path, environment: dict[str, str]) -> str:
    lines = run(WORDS + block, folder, environment).split("\0END\0")[:-1]
    words = json.dumps([line.split("\0") for line in lines])
    return run(words, folder, environment, sys.executable, "-c", TOGETHER)


def test_no_page_has_marked_commands_that_are_not_run():
    everything = "".join(TEXTS.values())
    assert everything.count("<!-- tested") == len(BLOCKS) + len((RANKS, SHARDS))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_links_lead_to_files(page):
    """Those to pages and headings are checked where the site is built."""
    for link in re.findall(r"\]\((?!https?:|#)([^)#]+)", page.read_text("utf-8")):
        assert (page.parent / link).exists(), link


def test_the_site_is_built_without_a_warning_and_leads_to_every_page(tmp_path):
    pages = [f"docs/{page.name}" for page in PAGES[1:]]
    navigation = (REPOSITORY / "docs" / "mkdocs.yml").read_text("utf-8")
    assert [page for page in pages if f": {page}\n" not in navigation] == []
    assert [page for page in pages if f"]({page})" not in TEXTS["README"]] == []
    site = [str(REPOSITORY / "scripts" / "site"), str(tmp_path / "site")]
    built = subprocess.run(site, capture_output=True, text=True)
    assert built.returncode == 0, built.stderr
    assert 'href="docs/speed/#kernels"' in (tmp_path / "site" / "index.html").read_text("utf-8")


@pytest.mark.parametrize("how", [in_one_process, pytest.param(run, marks=pytest.mark.slow)])
def test_commands_run_as_printed(environment, tmp_path, how):
    """In one folder and in their order: later ones read what earlier ones wrote."""
    trace = {"category": "x", "turn": 1, "prompt_ids": [1, 2], "answer_ids": [1, 2]}
    (tmp_path / "traces.jsonl").write_text(json.dumps(trace))
    how("".join(BLOCKS), tmp_path, environment)
    assert [path for path in WRITES if not (tmp_path / path).exists()] == []


def test_python_runs_as_printed(environment, tmp_path):
    """Of two pages, with the embedded model for the one that is named."""
    pages = [blocks("python, tested", TEXTS[page], "python") for page in ("README", "api")]
    programs = ["\n".join(page).replace(NAMED, model_path(TINY)) for page in pages]
    block = "".join(f"python -c {shlex.quote(program)}\n" for program in programs)
    printed = in_one_process(block, tmp_path, environment | {"MODEL": model_path(TINY)})
    assert len(re.findall(r"^\d+ tokens/s, \d+% copied$", printed, re.MULTILINE)) == 2, printed
    # How many depends on what is exact on this machine; none of so short a prompt, as a rule.
    assert re.search(r"^\d+ of \d+ tokens were not read again$", printed, re.MULTILINE)
    assert re.search(r"^Answer\(.+ tokens in \d+ forwards .+\)$", printed, re.MULTILINE)


def test_the_notebooks_outputs_are_those_of_its_code(tmp_path):
    """All but the times, which differ from machine to machine."""
    committed, copy = REPOSITORY / "docs" / "coloured_answer.ipynb", tmp_path / "copy.ipynb"
    notebook = json.loads(committed.read_text("utf-8"))
    cells = [cell for cell in notebook["cells"] if "outputs" in cell]
    assert all(cell["outputs"] for cell in cells)
    for cell in cells:
        cell |= {"outputs": [], "execution_count": None}
    copy.write_text(json.dumps(notebook))
    run(
        "",
        tmp_path,
        {**os.environ},
        sys.executable,
        str(REPOSITORY / "scripts/notebook"),
        str(copy),
    )
    made, shown = (
        re.sub(r"[0-9]+ tokens/s", "", path.read_text("utf-8")) for path in (copy, committed)
    )
    assert made == shown
    # GitHub removes styles, and shows these elements as they are by default.
    assert shown.count("<mark style=") == shown.count("<b style=") > 5


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
    block = re.sub(r" --limit \d+", "", REFERENCES[number]).rstrip()
    data = {"COPYSPEC_DATA_DIR": str(data_dir), "DRAFT": environment["MODEL"]}
    run(f"{block} --limit 2 --gen_kwargs max_gen_toks=16\n", tmp_path, environment | data)
    assert documents(tmp_path, "*/turns.jsonl") == [0, 1]


def documents(folder: Path, files: str) -> list[int]:
    """Those whose answers are recorded below the folder of runs."""
    paths = (folder / "runs").glob(files)
    rows = [json.loads(line) for path in paths for line in path.read_text().splitlines()]
    return sorted({row["doc_id"] for row in rows})


@pytest.mark.slow
def test_ranks_shards_and_arrays_share_the_documents_as_printed(environment, tmp_path):
    # Without several GPUs, accelerate has to be told to start several processes on the CPU.
    on_cpu = environment | {"ACCELERATE_USE_CPU": "true"}
    run(RANKS.replace("launch --num_", "launch --multi_gpu --num_"), tmp_path, on_cpu)
    assert documents(tmp_path, "ranks/turns.jsonl") == [0]
    assert documents(tmp_path, "ranks/turns*.jsonl") == [0, 1]
    run(SHARDS, tmp_path, environment)
    assert [documents(tmp_path, f"split/{number}/turns.jsonl") for number in (0, 1)] == [[0], [1]]
    (tmp_path / "array").mkdir()
    for number in "01":
        of_array = {"SLURM_ARRAY_TASK_ID": number, "SLURM_ARRAY_TASK_COUNT": "2"}
        run(SLURM.replace("last=79 ", "last=2 "), tmp_path / "array", environment | of_array)
    assert documents(tmp_path / "array", "split/*/turns.jsonl") == [0, 1, 2]


def commands(text: str, output: str) -> list[list[str]]:
    """Words of each command, with a name for the output folder."""
    lines = text.replace("\\\n", "").replace(output, "OUTPUT").splitlines()
    return [shlex.split(line, comments=True) for line in lines]


def test_the_quickstart_is_what_its_script_runs():
    """And the script has a test that runs it."""
    script = (REPOSITORY / "scripts" / "quickstart").read_text("utf-8")
    [given] = [
        words[words.index("lm_eval") :] for words in commands(script, "$out") if "lm_eval" in words
    ]
    [evaluate] = commands(QUICKSTART, "results/quickstart")
    assert given == [*evaluate, "$@"]
