"""Decoders side by side in the same conversations: which are run, and the table of their rates."""

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from copyspec_eval.redaction import shareable
from copyspec_eval.reports.tables import terminal, without_empty_columns

Row = Mapping[str, Any]
"""The JSON that `scripts/conversations` prints."""


_ANY, _ONE = range(1, 2**20), range(1, 2)


class Arm(NamedTuple):
    """A decoder with its options.

    Attributes:
        decoder, options: as `scripts/conversations` takes them.
        batch_sizes: those that it is run at.
        once: whether one pass is enough, since no claim rests on it.
    """

    decoder: str
    options: str
    batch_sizes: range = _ANY
    once: bool = False


_PACKAGES = {"copyspec": "copyspec-eval", "copyspec-vllm": "copyspec-eval", "hf": "transformers"}
_IN_VLLM = {"vllm", "copyspec-vllm"}
_NGRAM = "method=ngram,num_speculative_tokens=10,prompt_lookup_min=2,prompt_lookup_max=3"

ARMS = {
    "`generate`": Arm("hf", "", _ONE, once=True),
    "`generate`, compiled": Arm("hf", "cache_implementation=static", _ONE, once=True),
    "`generate`, prompt lookup": Arm("hf", "prompt_lookup_num_tokens=10", _ONE, once=True),
    "vLLM": Arm("vllm", ""),
    "vLLM, eager": Arm("vllm", "enforce_eager=true", once=True),
    "vLLM, ngram": Arm("vllm", _NGRAM, once=True),
    "vLLM, suffix": Arm("vllm", "method=suffix,num_speculative_tokens=15"),
    "vLLM, suffix without its store": Arm(
        "vllm",
        "method=suffix,num_speculative_tokens=15,suffix_decoding_max_cached_requests=0",
        once=True,
    ),
    "vLLM, our `suffix` with a store": Arm(
        "copyspec-vllm", "drafter=suffix,store=true,num_draft_tokens=31"
    ),
    "ours, `none`": Arm("copyspec", "drafter=none"),
    "ours, `suffix`": Arm("copyspec", "drafter=suffix", once=True),
    "ours, `suffix` with a store": Arm("copyspec", "drafter=suffix,store=true"),
}

COMPARED = {
    "our `suffix` with a store by our `none`": ("ours, `suffix` with a store", "ours, `none`"),
    "our `none` by vLLM": ("ours, `none`", "vLLM"),
    "our `suffix` by vLLM's, both with a store": ("ours, `suffix` with a store", "vLLM, suffix"),
    "our `suffix` by prompt lookup of `generate`": ("ours, `suffix`", "`generate`, prompt lookup"),
    "our `suffix` by vLLM's, both without": ("ours, `suffix`", "vLLM, suffix without its store"),
    "our drafts in vLLM by its own": ("vLLM, our `suffix` with a store", "vLLM, suffix"),
}


def commands(
    batch_sizes: Sequence[int], passes: int, with_vllm: bool, made: Sequence[Row]
) -> Iterator[list[list[str]]]:
    """Arguments of `scripts/conversations` but the model, of the arms that run in turn.

    Pass by pass and batch size by batch size; those that run once come in the last pass, on their
    own. Runs that are `made` are left out.
    """
    for number in range(passes):
        for once in (False, True) if number == passes - 1 else (False,):
            for batch_size in batch_sizes:
                arms = [
                    [arm.decoder, arm.options, "--batch-size", str(batch_size)]
                    for arm in ARMS.values()
                    if arm.once == once
                    and batch_size in arm.batch_sizes
                    and (with_vllm or arm.decoder not in _IN_VLLM)
                    and (0 if once else number) >= sum(_is_of(row, arm, batch_size) for row in made)
                ]
                if arms:
                    yield arms


def shared(line: str) -> str:
    """A line of `scripts/conversations` without folders of this machine."""
    row = json.loads(line)
    return json.dumps(row | {"command": shareable(row["command"])})


def read(path: Path) -> list[Row]:
    """The lines of all runs."""
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def table(rows: Sequence[Row]) -> str:
    """Median tokens per second on turn 1 and turn 2, an arm a row, with the number of its runs.

    `spread` is how far the farthest run is from its median. The last columns have median seconds:
    until a decoder is loaded, of its first answer, and of the first token after a long prompt.
    """
    batch_sizes = _batch_sizes(rows)
    lines: list[list[object]] = []
    for name in ARMS:
        by_batch = [_runs(rows, name, each) for each in batch_sizes]
        runs = [row for part in by_batch for row in part]
        if not runs:
            continue
        counts = sorted({len(part) for part in by_batch} - {0})
        turns = [[*zip(*_rates(part), strict=True)] for part in by_batch]
        cells = [", ".join(f"{median(of_turn):.0f}" for of_turn in part) for part in turns]
        spread = max(
            abs(rate / median(of_turn) - 1)
            for part in turns
            for of_turn in part
            for rate in of_turn
        )
        load, first, long = (
            [row[f"{name}_seconds"] for row in runs if f"{name}_seconds" in row]
            for name in ("load", "first_answer", "long_prompt")
        )
        seconds = [f"{median(each):.1f}" for each in (load, first) if each]
        shown = f"{spread:.0%}" if counts[-1] > 1 else ""
        lines.append([name, " to ".join(map(str, counts)), *cells, shown, ", ".join(seconds)])
        lines[-1].append(f"{median(long):.2f}" if long else "")
    headings = [f"batch {batch_size}" for batch_size in batch_sizes]
    headings = [
        "tokens/s on turn 1, turn 2",
        "runs",
        *headings,
        "spread",
        "s to load, first answer",
        "s to first token of 2,000",
    ]
    return terminal(*without_empty_columns(headings, lines))


def ratios(rows: Sequence[Row]) -> str:
    """How many times as fast we are, on turn 1 and turn 2: of the passes' ratios the median.

    The least and the greatest follow, if there are several.
    """
    batch_sizes = _batch_sizes(rows)
    lines: list[list[object]] = []
    for name, (ours, theirs) in COMPARED.items():
        cells = []
        for batch_size in batch_sizes:
            pair = [_rates(_runs(rows, arm, batch_size)) for arm in (ours, theirs)]
            if ARMS[theirs].once:  # in the last pass
                pair = [rates[-1:] for rates in pair]
            # Not strict: one of a pass may not have run yet.
            passes = [
                [a / b for a, b in zip(*each, strict=True)] for each in zip(*pair, strict=False)
            ]
            cells.append(", ".join(map(_ratio, zip(*passes, strict=True))))
        lines.append([name, *cells])
    headings = ["times as fast on turn 1, turn 2", *(f"batch {each}" for each in batch_sizes)]
    return terminal(headings, [line for line in lines if any(line[1:])])


def _ratio(passes: Sequence[float]) -> str:
    several = f" ({min(passes):.2f} to {max(passes):.2f})" if len(passes) > 1 else ""
    return f"{median(passes):.2f}{several}"


def _batch_sizes(rows: Sequence[Row]) -> list[int]:
    return sorted({row["batch_size"] for row in rows})


def _runs(rows: Sequence[Row], arm: str, batch_size: int) -> list[Row]:
    return [row for row in rows if _is_of(row, ARMS[arm], batch_size)]


def _rates(runs: Sequence[Row]) -> list[list[float]]:
    return [row["tokens_per_second"] for row in runs]


def render(result: Mapping[str, Any], rows: Sequence[Row]) -> str:
    """The table, under what was measured and where, and the commands."""
    run = result["manifest"]
    versions: dict[str, str] = {}
    for row in rows:
        decoder = str(row["decoder"])
        versions[_PACKAGES.get(decoder, decoder)] = row["version"]
    of_decoders = ", ".join(f"{name} {version}" for name, version in sorted(versions.items()))
    ran = dict.fromkeys(row["command"] for row in rows)
    return (
        f"# Decoders side by side\n\n{result['model']} in {result['dtype']}, "
        f"{result['conversations']}, at most 300 tokens an answer, prefill included; "
        f"{processor(run['hardware'])}, {run['threads']} threads; {of_decoders}; "
        f"{run['started_at'][:10]}\n\n{table(rows)}\n{ratios(rows)}\n```\n"
        + "".join(f"scripts/{command}\n" for command in ran)
        + "```\n"
    )


def processor(hardware: Mapping[str, Any]) -> str:
    """Its name, and its family where that is known: clouds name processors of several alike."""
    family = hardware.get("processor_family")
    return f"{hardware['processor']} (family {family})" if family else str(hardware["processor"])


def _is_of(row: Row, arm: Arm, batch_size: int) -> bool:
    pairs = (pair.partition("=") for pair in arm.options.split(",") if pair)
    options = {name: value for name, _, value in pairs}
    of_row = {name: json.dumps(value).strip('"') for name, value in row["options"].items()}
    return (row["decoder"], row["batch_size"], of_row) == (arm.decoder, batch_size, options)
