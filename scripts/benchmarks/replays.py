"""Replays of recorded answers: which are made, and their tables."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from copyspec_eval.reports.tables import terminal

_SETS = {
    "MT-Bench, Qwen2.5-7B": "mt_bench__qwen2.5-7b",
    "MT-Bench, Llama-3-8B": "mt_bench__llama3-8b",
    "MT-Redundant, Qwen2.5-7B": "mt_redundant__qwen2.5-7b",
    "MT-Redundant, Llama-3-8B": "mt_redundant__llama3-8b",
    "GSM8K, 3 turns, Qwen2.5-7B": "gsm8k_self_correction__qwen2.5-7b",
    "HumanEval, Llama-3-8B": "humaneval__llama3-8b",
}
_DRAFTERS = {
    "`copyspec`": ("copyspec", "gamma=3"),
    "`suffix` (default)": ("suffix", ""),
    "with `tree`": ("suffix", "tree=true"),
    "with `store`": ("suffix", "store=true"),
    "with both": ("suffix", "tree=true,store=true"),
}
_EARLIER = {
    "mt_redundant__qwen2.5-7b": "mt_bench__qwen2.5-7b",
    "mt_redundant__llama3-8b": "mt_bench__llama3-8b",
}
"""For each set the one whose answers are earlier ones."""
_TREE_AND_STORE = {
    "`suffix`": ("", "store=true", "store={}"),
    "`suffix` with `tree`": ("tree=true", "tree=true,store=true", "tree=true,store={}"),
}


class Replay(NamedTuple):
    """A replay as `copyspec-eval replay` takes it; all three are names in tables and files, too.

    Attributes:
        drafter, options: `--drafter` and `--drafter-args`, in which a store is a set's name.
        traces: the set's name.
    """

    drafter: str
    options: str
    traces: str


Rates = dict[Replay, dict[str, float]]
"""Tokens per forward of each replay, by turn, and in total."""


def wanted() -> Iterator[Replay]:
    for traces in _SETS.values():
        yield from (Replay(*drafter, traces) for drafter in _DRAFTERS.values())
    for traces, earlier in _EARLIER.items():
        yield from (
            Replay("suffix", stores[-1].format(earlier), traces)
            for stores in _TREE_AND_STORE.values()
        )


def table(rates: Rates) -> str:
    """Tokens per forward, a drafter a row."""
    rows = [
        [name, *(f"{rates[Replay(*drafter, each)]['total']:.2f}" for each in _SETS.values())]
        for name, drafter in _DRAFTERS.items()
    ]
    return terminal(["tokens per forward", *_SETS], rows)


def earlier_table(rates: Rates) -> str:
    """Tokens per forward on turn 2 of MT-Redundant: alone, with a store, after MT-Bench."""
    rows = []
    for traces, earlier in _EARLIER.items():
        [model] = (name.rsplit(", ", 1)[1] for name, each in _SETS.items() if each == traces)
        for drafter, stores in _TREE_AND_STORE.items():
            named = (Replay("suffix", options.format(earlier), traces) for options in stores)
            rows.append([f"{model}, {drafter}", *(f"{rates[each]['2']:.2f}" for each in named)])
    return terminal(["answers of", "alone", "`store=true`", "after MT-Bench"], rows)


def overview(rates: Rates) -> str:
    """Tokens per forward of the default and of everything switched on, a model's answers a row."""
    tasks, models = zip(*(name.rsplit(", ", 1) for name in _SETS), strict=True)
    rows = []
    for model in dict.fromkeys(models):
        for name in ("`suffix` (default)", "with both"):
            cells = dict.fromkeys(tasks, "")
            for task, of_model, traces in zip(tasks, models, _SETS.values(), strict=True):
                if of_model == model:
                    cells[task] = f"{rates[Replay(*_DRAFTERS[name], traces)]['total']:.2f}"
            rows.append([f"{model}, {name.replace('both', 'tree and store')}", *cells.values()])
    return terminal(["answers of", *dict.fromkeys(tasks)], rows)


def read(path: Path) -> Rates:
    lines = json.loads(path.read_text(encoding="utf-8"))
    return {Replay(*names): by_turn for *names, by_turn in lines}


def write(rates: Rates, folder: Path) -> None:
    """The figures as JSON, and their tables."""
    folder.mkdir(parents=True, exist_ok=True)
    lines = [json.dumps([*replay, by_turn]) for replay, by_turn in rates.items()]
    (folder / "replays.json").write_text("[\n" + ",\n".join(lines) + "\n]\n")
    (folder / "REPLAYS.md").write_text(render(rates))


def render(rates: Rates) -> str:
    return (
        "# Replays\n\nTokens per forward on greedy answers that the paper's authors published, "
        "counted without a model; a draft token is taken to cost a hundredth of a forward.\n\n"
        f"{table(rates)}\nTurn 2 of MT-Redundant alone, with a store of the run's answers, and "
        "after the same model's answers to MT-Bench, which asks something else on the same "
        f"first answer.\n\n{earlier_table(rates)}\n```\nscripts/replays\n```\n"
    )
