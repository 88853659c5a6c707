"""The stock `lm_eval` command, run as a user runs it, and what it leaves."""

import json
import os
import subprocess
import sys
import time
from dataclasses import dataclass, replace
from pathlib import Path
from signal import SIGKILL, Signals
from typing import Any

from in_process import rows_in

from copyspec_eval import records
from copyspec_eval.records import TurnRecord

BIN = Path(sys.executable).parent


@dataclass(frozen=True)
class Command:
    """`lm_eval` on two-turn questions, with its output in a folder of its own."""

    model: Path
    data: Path
    output: Path

    def arguments(self, *more: str, model: str = "copyspec", options: str = "gamma=2") -> list[str]:
        words = ["--model", model, "--device", "cpu", "--tasks", "mt_redundant"]
        words += ["--model_args", f"pretrained={self.model},dtype=float64,{options}"]
        words += ["--apply_chat_template", "--log_samples", "--output_path", str(self.output)]
        return [*words, *more]

    @property
    def environment(self) -> dict[str, str]:
        return {**os.environ, "COPYSPEC_DATA_DIR": str(self.data), "ACCELERATE_USE_CPU": "true"}

    def run(self, *more: str, program: tuple[str, ...] = ("lm_eval",), **named: str) -> str:
        """Run to success; what was printed on standard output."""
        words = [str(BIN / program[0]), *program[1:], *self.arguments(*more, **named)]
        result = subprocess.run(words, env=self.environment, capture_output=True, text=True)
        assert result.returncode == 0, result.stderr
        return result.stdout

    def end(self, *more: str, sent: Signals = SIGKILL, answers: int = 1, **named: str) -> int:
        """Run, send a signal once there are so many answers; the exit code."""
        program = [str(BIN / "lm_eval"), *self.arguments(*more, **named)]
        file = records.records_file(self.output, rank=0)
        with subprocess.Popen(program, env=self.environment) as process:
            while not file.exists() or file.read_bytes().count(b"\n") < answers:
                assert process.poll() is None, "it ended before it could be killed"
                time.sleep(0.02)
            process.send_signal(sent)
        return process.returncode

    def results(self) -> dict[str, Any]:
        """The newest results file."""
        return dict(json.loads(max(self.output.glob("*/results_*.json")).read_text()))

    def metrics(self) -> dict[str, float]:
        """Figures of the newest results by name."""
        figures = self.results()["results"]["mt_redundant"]
        names = [name for name in figures if name.endswith(",none") and "stderr" not in name]
        return {name: figures[name] for name in names}

    def samples(self) -> list[dict[str, Any]]:
        """The newest sample log, by document."""
        lines = max(self.output.glob("*/samples_*.jsonl")).read_text().splitlines()
        return sorted(map(json.loads, lines), key=lambda sample: sample["doc_id"])

    def conversations(self) -> list[tuple[Any, Any]]:
        """Prompts and answers of every document; lm-eval logs an answer that pads twice."""
        return [
            (sample["arguments"], [answers[0] for answers in sample["resps"]])
            for sample in self.samples()
        ]

    def elsewhere(self, name: str) -> "Command":
        """The same command with another output folder."""
        return replace(self, output=self.output.with_name(name))

    def rows(self) -> list[TurnRecord]:
        """All rows of all ranks."""
        return rows_in(self.output)
