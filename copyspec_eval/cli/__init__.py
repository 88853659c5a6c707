"""The `copyspec-eval` command line; each command is the function of its name in `commands`."""

import argparse
from collections.abc import Callable, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any, NoReturn, TypeAlias

from copyspec_eval.cli import commands
from copyspec_eval.errors import CopySpecError, print_error, suggestion
from copyspec_eval.redaction import masked

_Commands: TypeAlias = "argparse._SubParsersAction[_Parser]"
_RUN: dict[str, Any] = {"type": Path, "metavar": "RUN"}
_DIR: dict[str, Any] = {"type": Path, "metavar": "DIR"}
_FILE: dict[str, Any] = {"type": Path, "metavar": "FILE"}
_RUN_FOLDER = "the --output_path of a run"
_MODEL = "name on the Hub, or a folder"


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code: 1 after a one-line error, 2 after wrong usage."""
    arguments = _parser().parse_args(argv)
    try:
        code: int | None = getattr(commands, arguments.command)(arguments)
    except (CopySpecError, OSError) as error:
        print_error(error)
        return 1
    return code or 0


class _Parser(argparse.ArgumentParser):
    """Suggests names; names unknown options without their values, one of which may be a key."""

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        # Refused here, and not by the parser of all commands, which does not know the options.
        parsed, unknown = super().parse_known_args(args, namespace)
        names = [word.partition("=")[0] for word in unknown if word.startswith("-")]
        if unknown:
            known = self._option_string_actions
            texts = [name + suggestion(name, known) for name in names]
            self.error(f"unrecognized arguments: {' '.join(texts)}")
        return parsed, unknown

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        if action.choices is not None and value not in action.choices:
            choices = list(map(str, action.choices))
            remedy = suggestion(str(value), choices) or f" (choose from {', '.join(choices)})"
            raise argparse.ArgumentError(action, f"invalid choice: {str(value)!r}{remedy}")

    def error(self, message: str) -> NoReturn:
        super().error(masked(message))


def _parser() -> argparse.ArgumentParser:
    installed = version("copyspec-eval")
    what = "Measure and verify CopySpec speculative decoding in lm-evaluation-harness."
    parser = _Parser(prog="copyspec-eval", description=what, allow_abbrev=False)
    parser.add_argument("--version", action="version", version=f"%(prog)s {installed}")
    choices = parser.add_subparsers(metavar="COMMAND", dest="command", required=True)
    what = "run lm-eval with our models and tasks, without the start-up hook"
    # No argument starts with NUL, so nothing here is an option of ours: not even --help.
    command = choices.add_parser("run", help=what, prefix_chars="\0", add_help=False)
    command.add_argument("lm_eval_arguments", nargs=argparse.REMAINDER)
    _add_reports(choices)
    _add_models(choices)
    _add_asking(choices)
    _add_surroundings(choices, parser)
    _add_audit(choices)
    formats = choices.add_parser("export", help="write a run's answers in another tool's format")
    kinds = formats.add_subparsers(metavar="FORMAT", dest="format", required=True)
    for name, what in {
        "fastchat": "MT-Bench and MT-Redundant answers, as model_answer files",
        "evalplus": "HumanEval programs, as samples to evaluate",
        "turns": "counts, times and settings of every turn, as turns.parquet",
        "tensorboard": "figures of every turn as curves, and settings, for TensorBoard",
    }.items():
        add = kinds.add_parser(name, help=what).add_argument
        add("run", **_RUN, help=_RUN_FOLDER)
        add("--out", required=True, **_DIR, help="output folder")
    return parser


def _add_reports(choices: _Commands) -> None:
    what = "count the forwards that a drafter needs for recorded answers; runs no model"
    add = choices.add_parser("replay", help=what).add_argument
    add("--drafter", required=True, metavar="NAME", help="suffix, copyspec or none")
    what = "e.g. gamma=3, or tree=true,store=FILE with earlier answers by id and turn "
    what += "(default: the drafter's own)"
    add("--drafter-args", default="", metavar="K=V,…", help=what)
    add("--traces", required=True, **_FILE, help="recorded answers, JSONL")
    what = "cost of a draft token as a share of a forward (default: 0.01)"
    add("--token-cost", type=float, default=0.01, metavar="ALPHA", help=what)
    add("--json", action="store_true", help="print JSON instead of a table")

    what = "check whether two runs gave the same answers (exit code 1 if not)"
    add = choices.add_parser("compare", help=what).add_argument
    add("run_a", type=Path, metavar="RUN_A", help=_RUN_FOLDER)
    what = "second run; omit to compare the arms of a paired run"
    add("run_b", type=Path, nargs="?", metavar="RUN_B", help=what)
    what = "load this model to tell near-ties from divergences (default: every difference diverges)"
    add("--rescore", metavar="MODEL", help=what)
    add("--json", action="store_true", help="print JSON instead of tables")

    what = "summarise runs as tables and an HTML page"
    add = choices.add_parser("report", help=what).add_argument
    what = "the --output_path of a run, or a folder with runs below it (default: this folder)"
    add("runs", nargs="*", default=[Path()], **_RUN, help=what)
    add("--wide", action="store_true", help="print more columns")
    what = "write LEADERBOARD.md, leaderboard*.csv, leaderboard.json and report.html here "
    add("--out", **_DIR, help=f"{what}(default: print only)")
    what = "open the page in a browser; without --out it is written to a new temporary folder"
    add("--open", action="store_true", help=what)
    formats = ["table", "md", "csv", "json"]
    what = "output format (default: table)"
    add("--format", choices=formats, default="table", help=what)


def _add_models(choices: _Commands) -> None:
    choices.add_parser("tiny", help="print the folder of the embedded model")
    what = "check which steps are bit-exact for a model on this machine"
    add = choices.add_parser("exactness", help=what).add_argument
    add("model", metavar="MODEL", help=_MODEL)
    add("--dtype", metavar="NAME", help="e.g. bfloat16 (default: the checkpoint's)")
    add("--device", metavar="NAME", help="e.g. cuda:0 (default: a GPU if there is one)")
    add("--batch-sizes", type=int, nargs="+", default=[1, 8], metavar="N", help="default: 1 8")

    add = choices.add_parser(
        "paper",
        help="reproduce a table from the paper",
        epilog="Interrupted runs resume; finished runs are not repeated. Tables: main, "
        "categories, gamma, copied-tokens, draft-model, self-correction, context-length, "
        "similarity.",
    ).add_argument
    add("table", metavar="TABLE", help="one of the names below")
    what = f"{_MODEL}; several models become rows of one table"
    add("--model", required=True, nargs="+", metavar="NAME", help=what)
    add("--draft-model", metavar="NAME", help="for tables with a draft model (default: none)")
    what = "tasks of the table, e.g. mbpp_evalplus_paper (default: the paper's)"
    add("--tasks", nargs="+", default=[], metavar="TASK", help=what)
    add("--limit", type=int, metavar="N", help="documents per task (default: the paper's)")
    what = "further --model_args for lm-eval (default: none)"
    add("--model-args", default="", metavar="K=V,…", help=what)
    what = "--gen_kwargs for lm-eval, e.g. max_gen_toks=300 (default: the table's)"
    add("--gen-kwargs", metavar="K=V,…", help=what)
    what = "system message of every conversation (default: none)"
    add("--system-instruction", metavar="TEXT", help=what)
    what = "FastChat's template for MT-Bench and MT-Redundant (default: by the model's name)"
    add("--template", metavar="NAME", help=what)
    what = "the model has no chat template: send prompts as plain text to complete"
    add("--base", action="store_true", dest="is_base", help=what)
    add("--batch-size", default="1", metavar="N", help="default: 1")
    add("--out", default=Path("runs/paper"), **_DIR, help="output folder (default: runs/paper)")
    add("--plan", action="store_true", help="dry run: print commands and estimated time")
    what = "speed of plain decoding, for the estimate (default: 35.5, Llama-3.1-8B in the paper)"
    add("--tokens-per-second", type=float, default=35.5, metavar="N", help=what)


def _add_asking(choices: _Commands) -> None:
    add = choices.add_parser(
        "judge",
        help="let a chat model rate a run, or compare two runs",
        epilog="Judgements are saved as they arrive; repeat the command to ask for missing ones. A "
        "judgement is given up after 300 seconds, retries included.",
    ).add_argument
    add("run", **_RUN, help=_RUN_FOLDER)
    what = "compare with this run of the same task, in both orders (default: rate RUN alone)"
    add("--against", **_RUN, help=what)
    what = "also show references for second turns of MT-Redundant, as FastChat does"
    add("--all-references", action="store_true", help=what)
    _add_chat_model(add, "the judge, e.g. gpt-4")

    what = "generate follow-up questions that ask for an edited version of the first answer"
    add = choices.add_parser("redundant", help=what).add_argument
    what = "question file in FastChat's format"
    add("questions", type=Path, metavar="QUESTIONS", help=what)
    add("--out", required=True, **_FILE, help="output file")
    _add_chat_model(add, "model that writes the second turns")


def _add_surroundings(choices: _Commands, parser: _Parser) -> None:
    what = "show what this machine offers: versions, devices, exact mode, sandbox, what is missing"
    choices.add_parser("doctor", help=what)
    what = "print a script that completes commands and options in a shell"
    how = 'For bash, add to ~/.bashrc: eval "$(copyspec-eval completion bash)"'
    command = choices.add_parser("completion", help=what, epilog=how)
    command.add_argument("shell", choices=["bash", "zsh", "tcsh"], help="the shell")
    command.set_defaults(parser=parser)


def _add_audit(choices: _Commands) -> None:
    add = choices.add_parser(
        "audit",
        help="find out whether two engines differ by rounding, or one is broken",
        epilog="Exit code: 0 if answers are identical or differ by rounding, 1 if more differs, 2 "
        "if the audit could not decide. A SIDE is a server, base_url=http://HOST:PORT/v1,"
        "model=NAME; an lm-eval model, vllm,pretrained=NAME; or the folder of an earlier run. "
        "Replies are saved as they arrive; repeat an interrupted command to go on.",
    ).add_argument
    add("--a", required=True, metavar="SIDE", help="the engine that is trusted")
    add("--b", required=True, metavar="SIDE", help="the engine that is audited")
    add("--tasks", default="", metavar="T,…", help="lm-eval's (default: an earlier run's)")
    add("--limit", type=int, metavar="N", help="documents per task (default: all)")
    what = "requests at a time; the documents are split among these numbers (default: 1,8,32)"
    add("--concurrency", default="1,8,32", metavar="N,…", help=what)
    what = "local model that tells near-ties where A lists no log-probabilities"
    add("--rescore", metavar="MODEL", help=f"{what} (default: none)")
    what = "render prompts with its chat template, and have servers complete them"
    add("--tokenizer", metavar="NAME", help=f"{what} (default: servers get chat messages)")
    what = "as lm-eval's --gen_kwargs, e.g. max_gen_toks=300 (default: the tasks')"
    add("--gen-kwargs", metavar="K=V,…", help=what)
    what = "run programs that the models wrote, in the sandbox, to score such tasks"
    add("--confirm-run-unsafe-code", action="store_true", help=what)
    what = "output folder (default: audit)"
    add("--out", default=Path("audit"), **_DIR, help=what)


def _add_chat_model(add: Callable[..., Any], what: str) -> None:
    add("--model", required=True, metavar="NAME", help=what)
    add("--base-url", metavar="URL", help="OpenAI-compatible server (default: OpenAI)")
    add("--concurrency", type=int, default=4, metavar="N", help="concurrent requests (default: 4)")
