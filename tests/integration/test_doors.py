"""The wheel, installed beside an unmodified lm-eval, is found by every way to start lm-eval.

Each virtual environment here is new. To save minutes it sees the third-party packages of the
environment that runs the tests, through links that leave out this project's own installation; one
slow test installs everything for real instead.
"""

import json
import os
import subprocess
import sys
import sysconfig
import tempfile
import venv
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]
OURS = ("copyspec", "copyspec-timed", "copyspec-vllm")
OUR_TASKS = {
    *("mt_bench", "mt_redundant", "copyspec_mt", "copyspec"),
    *("gsm8k_self_correction", "cnn_dailymail_extractive", "humaneval_evalplus"),
    *("quickstart_redundant", "quickstart_self_correction", "quickstart_extractive"),
    *("copyspec_quickstart", "copyspec_paper", "mbpp_evalplus", "mbpp_evalplus_paper"),
    *("mt_bench_paper", "mt_redundant_paper", "gsm8k_self_correction_paper"),
    *("cnn_dailymail_extractive_paper", "humaneval_evalplus_paper"),
}
LM_EVAL_SCRIPT = """\
#!{python}
import sys
from lm_eval.__main__ import cli_evaluate
sys.exit(cli_evaluate())
"""
COMMANDS = {
    "lm_eval": ["lm_eval"],
    "lm-eval run": ["lm-eval", "run"],
    "python -m lm_eval": ["python", "-m", "lm_eval"],
    "accelerate": ["python", "-m", "accelerate.commands.launch", "--cpu", "-m", "lm_eval"],
    "torchrun": [
        *("python", "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "1"),
        *("-m", "lm_eval"),
    ],
    "copyspec-eval run": ["copyspec-eval", "run"],
    "python -m copyspec_eval run": ["python", "-m", "copyspec_eval", "run"],
}


def run_program(
    *command: str, folder: Path, env: dict[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Run to success, else fail the test with all that the program printed."""
    result = subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True)
    assert result.returncode == 0, f"{command} failed:\n{result.stdout}\n{result.stderr}"
    return result


@dataclass(frozen=True)
class Environment:
    """A virtual environment in its own folder, which is also where its commands run."""

    root: Path

    @property
    def site_packages(self) -> Path:
        return Path(sysconfig.get_path("purelib", "posix_prefix", {"base": str(self.root)}))

    def run(self, *command: str, **variables: str) -> subprocess.CompletedProcess[str]:
        """Run one of the environment's programs, blind to the tests' own environment."""
        hidden = ("COPYSPEC_EVAL_AUTOLOAD", "PYTHONPATH", "VIRTUAL_ENV")
        remaining = {name: value for name, value in os.environ.items() if name not in hidden}
        program = str(self.root / "bin" / command[0])
        env = {**remaining, "OMP_NUM_THREADS": "1", **variables}
        return run_program(program, *command[1:], folder=self.root, env=env)

    def ask(self, *expressions: str, **variables: str) -> list[Any]:
        """Values of Python expressions, evaluated in turn in one new interpreter."""
        program = "import json, sys\nimport lm_eval.models\nimport lm_eval.tasks\n"
        program += "from lm_eval.api.registry import get_model, model_registry\n"
        program += "from lm_eval.tasks import TaskManager, manager\n"
        program += f"print('ANSWER', json.dumps([{', '.join(expressions)}]))"
        result = self.run("python", "-c", program, **variables)
        assert result.stderr == ""
        return list(json.loads(result.stdout.partition("ANSWER ")[2]))

    def pip(self, *arguments: str) -> None:
        python = str(self.root / "bin" / "python")
        pip = [sys.executable, "-m", "pip", "--python", python]
        run_program(*pip, *arguments, folder=self.root)

    def files(self) -> set[Path]:
        return {path.relative_to(self.root) for path in self.root.rglob("*")}


def make_environment(root: Path) -> Environment:
    """A virtual environment that has lm-eval and its dependencies, but not this project."""
    environment = Environment(root)
    venv.create(root, symlinks=True)
    links = root / "third_party"
    links.mkdir()
    for package in Path(sysconfig.get_path("purelib")).iterdir():
        if "copyspec_eval" not in package.name:
            (links / package.name).symlink_to(package)
    # Site adds the folder that a .pth file names without running the .pth files inside it.
    (environment.site_packages / "third_party.pth").write_text(f"{links}\n")
    for name in ("lm_eval", "lm-eval"):
        script = root / "bin" / name
        script.write_text(LM_EVAL_SCRIPT.format(python=root / "bin" / "python"))
        script.chmod(0o755)
    return environment


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel as it would be published: built from the source distribution."""
    folder = tmp_path_factory.mktemp("dist")
    build = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(folder)]
    run_program(*build, str(REPOSITORY), folder=folder)
    [path] = folder.glob("*.whl")
    return path


@pytest.fixture(scope="module")
def stock(tmp_path_factory: pytest.TempPathFactory) -> Environment:
    """lm-eval without this project."""
    return make_environment(tmp_path_factory.mktemp("stock"))


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory, wheel: Path) -> Environment:
    """lm-eval with the wheel installed beside it."""
    environment = make_environment(tmp_path_factory.mktemp("installed"))
    environment.pip("install", "--no-index", "--no-deps", str(wheel))
    return environment


def evaluate(
    environment: Environment,
    command: list[str],
    pretrained: Path,
    questions: Path,
    model: str = "copyspec",
    **variables: str,
) -> None:
    """Run two documents of mt_redundant and see that lm-eval has written results for them."""
    with tempfile.TemporaryDirectory() as output:
        environment.run(
            *command,
            *("--model", model, "--model_args", f"pretrained={pretrained},dtype=float32"),
            *("--tasks", "mt_redundant", "--limit", "2", "--apply_chat_template"),
            *("--gen_kwargs", "max_gen_toks=12", "--device", "cpu"),
            *("--log_samples", "--output_path", f"{output}/results.json"),
            COPYSPEC_DATA_DIR=str(questions),
            **variables,
        )
        [results] = Path(output).glob("results*.json")
        assert json.loads(results.read_text())["n-samples"]["mt_redundant"]["effective"] == 2


def test_the_wheel_carries_types_tasks_and_hook(wheel):
    names = set(zipfile.ZipFile(wheel).namelist())
    assert names >= {
        "copyspec_eval/py.typed",
        "copyspec_eval/tasks/mt_redundant/mt_redundant.yaml",
        "copyspec_eval/tasks/copyspec_quickstart/redundant.jsonl",
        "copyspec_eval/tiny/model/model.safetensors",
        "copyspec_eval/tiny/model/tokenizer.json",
        *(f"copyspec_eval/reports/page/{name}" for name in ("page.html", "style.css", "viewer.js")),
        "_copyspec_eval_autoload.py",
        "copyspec_eval_autoload.pth",
        "copyspec_eval_autoload.start",
    }
    assert not [name for name in names if name.startswith(("tests/", "tasks/", "scripts/"))]
    assert wheel.stat().st_size < 20e6


def test_models_and_tasks_are_known(installed, stock):
    models, tasks, light, *classes = installed.ask(
        "list(model_registry.keys())",
        "TaskManager(include_defaults=False).all_tasks",
        "'torch' not in sys.modules",
        *(f"get_model({name!r}).__name__" for name in (*OURS, "hf")),
    )
    builtin, stock_tasks = stock.ask(
        "list(model_registry.keys())", "TaskManager(include_defaults=False).all_tasks"
    )
    assert "copyspec" not in builtin
    assert stock_tasks == []
    assert models == [*builtin, *OURS]
    assert set(tasks) == OUR_TASKS
    assert light
    assert classes == ["CopySpecLM", "TimedLM", "CopySpecVLLM", "HFLM"]


PLUGINS = """
import json
from importlib.metadata import entry_points
from importlib.util import find_spec
from pathlib import Path
names = [model.name for model in entry_points(group="lm_eval.models")]
[tasks] = entry_points(group="lm_eval.tasks")
[folder] = find_spec(tasks.value).submodule_search_locations
print(json.dumps([names, [path.name for path in Path(folder).glob("*.yaml")]]))
"""


@pytest.mark.parametrize("editable", [False, True], ids=["wheel", "editable"])
def test_entry_points_lead_to_models_and_tasks(request, tmp_path, editable):
    """As lm-eval will read them (its pull requests 4013 and 4015); the tests' own is editable."""
    if editable:
        result = run_program(sys.executable, "-c", PLUGINS, folder=tmp_path)
    else:
        result = request.getfixturevalue("installed").run("python", "-c", PLUGINS)
    names, files = json.loads(result.stdout)
    assert set(names) == set(OURS)
    assert "copyspec_mt.yaml" in files


def test_the_users_tasks_come_after_ours_and_ours_only_once(installed):
    ours = str(installed.site_packages / "copyspec_eval" / "tasks")
    paths = "[str(path) for path in TaskManager({}, include_defaults=False).include_path]"
    assert installed.ask(
        paths.format("include_path='mine'"), paths.format(f"None, ['mine', {ours!r}]")
    ) == [[ours, "mine"], ["mine", ours]]


def test_the_hook_stands_down_for_an_lm_eval_that_finds_plugins(installed):
    ours = str(installed.site_packages / "copyspec_eval" / "tasks")
    found_by_lm_eval = f"setattr(manager, 'discover_plugin_task_paths', lambda: [{ours!r}])"
    include_path = "TaskManager(include_defaults=False).include_path"
    assert installed.ask(found_by_lm_eval, include_path) == [None, None]


def test_start_up_imports_nothing_and_can_be_switched_off(installed):
    program = "import sys; print([m for m in sys.modules if 'copyspec' in m or 'lm_eval' in m])"
    assert installed.run("python", "-c", program).stdout == "['_copyspec_eval_autoload']\n"
    [models, tasks] = installed.ask(
        "list(model_registry.keys())",
        "TaskManager(include_defaults=False).all_tasks",
        COPYSPEC_EVAL_AUTOLOAD="0",
    )
    assert "copyspec" not in models
    assert tasks == []


LEAVING = """class Leaving:
    @staticmethod
    def find_spec(name, path=None, target=None):
        if name == "copyspec_eval.harness":
            sys.exit("broken")
sys.meta_path.insert(0, Leaving)
"""


@pytest.mark.parametrize(
    "breaking", ["sys.modules['copyspec_eval.harness'] = None\n", LEAVING], ids=["error", "exit"]
)
def test_a_failing_registration_warns_and_leaves_lm_eval_working(installed, breaking):
    program = (
        "import sys\n" + breaking + "import lm_eval.models, lm_eval.tasks\n"
        "from lm_eval.api.registry import get_model\n"
        "print(get_model('dummy').__name__)"
    )
    result = installed.run("python", "-c", program)
    assert result.stdout == "DummyLM\n"
    assert result.stderr.count("copyspec-eval: warning: not registered in lm_eval.") == 3


@pytest.mark.slow
@pytest.mark.parametrize("editable", [False, True], ids=["wheel", "editable"])
def test_uninstalling_leaves_no_file_behind(tmp_path, wheel, editable):
    environment = make_environment(tmp_path / "environment")
    known = ("'copyspec' in model_registry", "TaskManager(include_defaults=False).all_tasks")
    assert environment.ask(*known) == [False, []]
    before = environment.files()
    what = ["--no-build-isolation", "--editable", str(REPOSITORY)] if editable else [str(wheel)]
    environment.pip("install", "--no-index", "--no-deps", *what)
    [model, tasks] = environment.ask(*known)
    assert model
    assert set(tasks) >= OUR_TASKS
    environment.pip("uninstall", "--yes", "copyspec-eval")
    assert environment.files() == before
    assert environment.ask(*known) == [False, []]


@pytest.mark.slow
@pytest.mark.parametrize("command", COMMANDS.values(), ids=COMMANDS.keys())
def test_every_command_evaluates_with_our_model(installed, byte_model, questions, command):
    evaluate(installed, command, byte_model, questions)


@pytest.mark.slow
def test_our_command_needs_no_hook(installed, byte_model, questions):
    command = ["copyspec-eval", "run"]
    evaluate(installed, command, byte_model, questions, COPYSPEC_EVAL_AUTOLOAD="0")


@pytest.mark.slow
def test_the_embedded_model_comes_with_it(installed, tmp_path):
    """From any directory, without a network or a cache, and without naming a model."""
    installed.run(
        *("lm_eval", "--model", "copyspec", "--tasks", "copyspec_quickstart", "--limit", "4"),
        *("--apply_chat_template", "--confirm_run_unsafe_code", "--output_path", str(tmp_path)),
        HF_HOME=str(tmp_path / "empty"),
    )
    [results] = tmp_path.rglob("results*.json")
    assert json.loads(results.read_text())["n-samples"]["quickstart_redundant"]["effective"] == 4


@pytest.mark.slow
def test_our_tasks_run_on_a_built_in_model(installed, byte_model, questions):
    evaluate(installed, ["lm_eval"], byte_model, questions, model="hf")


@pytest.mark.slow
def test_lm_evals_other_commands_know_our_tasks(installed, questions):
    listed = installed.run("lm_eval", "ls", "tasks").stdout
    assert all(f"|{name} " in listed for name in OUR_TASKS | {"gsm8k"})
    validate = ["lm_eval", "validate", "--tasks", "mt_redundant"]
    assert "All tasks found" in installed.run(*validate, COPYSPEC_DATA_DIR=str(questions)).stdout


@pytest.mark.slow
def test_a_real_installation_works(tmp_path, wheel, byte_model, questions):
    """Into an empty environment, with everything that it needs, from the package index."""
    environment = Environment(tmp_path / "environment")
    venv.create(environment.root, symlinks=True)
    environment.pip("install", "-c", str(REPOSITORY / "constraints.txt"), str(wheel))
    assert "mt_redundant" in environment.run("lm_eval", "ls", "tasks").stdout
    evaluate(environment, ["lm_eval"], byte_model, questions)
    environment.pip("uninstall", "--yes", "copyspec-eval")
    assert "mt_redundant" not in environment.run("lm_eval", "ls", "tasks").stdout
