"""The table of decoders side by side, from the lines that they print."""

import json
from typing import Any

from benchmarks import decoders
from recorded_runs import MADE


def row(decoder: str, rates: list[float], batch_size: int = 1, **options: Any) -> dict[str, Any]:
    command = f"conversations --model /tmp/x/M {decoder}"
    shown = {"tokens_per_second": rates, "version": "1.2", "command": command}
    return {"decoder": decoder, "options": options, "batch_size": batch_size, **shown}


def test_the_file_says_where_and_what_and_each_cell_is_a_median() -> None:
    rows = [
        row("hf", [30.0, 31.0]),
        *(row("vllm", [60.0 + n, 61.0 + n]) for n in (5, 0, 1)),
        row("copyspec", [100.0, 200.4], drafter="suffix"),
        row("copyspec", [500.0, 600.0], batch_size=8, drafter="suffix"),
    ]
    table = decoders.table(rows)
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines()]
    assert cells[0] == ["tokens/s on turn 1, turn 2", "runs", "batch 1", "batch 8"]
    assert cells[2:] == [
        ["`generate`", "1", "30, 31", ""],
        ["vLLM", "3", "61, 62", ""],
        ["ours, `suffix`", "1", "100, 200", "500, 600"],
    ]
    text = decoders.render({"model": "M", "manifest": {"threads": 2, **MADE}}, rows)
    assert "M in bfloat16" in text
    assert "P, 2 threads; copyspec-eval 1.2, transformers 1.2, vllm 1.2; 2026-01-02" in text
    assert table in text
    assert text.count("scripts/conversations") == 3


def test_every_command_gives_a_row_of_the_table() -> None:
    """Arms in turn, those that are enough once in the first pass alone."""
    commands = list(decoders.commands([1, 8], passes=2, with_vllm=True))
    assert len(commands) == len({tuple(command) for command in commands}) + 10 + 3
    for decoder, text, _, batch_size in commands:
        options = dict(pair.split("=") for pair in text.split(",") if pair)
        values = {
            name: json.loads(value) if value in ("true", "false") or value.isdecimal() else value
            for name, value in options.items()
        }
        printed = row(decoder, [1.0, 2.0], int(batch_size), **values)
        assert len(decoders.table([printed]).splitlines()) == 3, text
    without = decoders.commands([1, 8], passes=1, with_vllm=False)
    assert not [command for command in without if "vllm" in command[0]]


def test_what_is_written_down_names_no_folder() -> None:
    line = json.dumps(row("hf", [1.0, 2.0]))
    assert json.loads(decoders.shared(line))["command"] == "conversations --model M hf"
