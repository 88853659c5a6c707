"""Pairs of settings of one engine, the commands that serve and audit them, and their table."""

import json
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from copyspec_eval.audit.findings import NAMES
from copyspec_eval.audit.verdicts import KINDS
from copyspec_eval.reports.tables import terminal, without_empty_columns

_OURS = (
    '{"method": "custom_class", "num_speculative_tokens": 31, '
    '"model": "copyspec_eval.serving.proposer.CopySpecProposer"}'
)
_SUFFIX = '{"method": "suffix", "num_speculative_tokens": 15}'
ENVIRONMENT = {
    **{"VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind"},
    **{"OMP_NUM_THREADS": str(len(os.sched_getaffinity(0))), "VLLM_LOGGING_LEVEL": "WARNING"},
}

_TIMEOUT_SECONDS = 3600
"""Of an answer: a server that answers one by one keeps the last of 32 waiting for minutes."""


class Pair(NamedTuple):
    """Options of the same engine's command, on each side."""

    engine: str
    a: tuple[str, ...] = ()
    b: tuple[str, ...] = ()


PAIRS = {
    "vllm-batch": Pair("vLLM", ("--max-num-seqs", "1"), ("--max-num-seqs", "8")),
    "vllm-compiled": Pair("vLLM", ("--enforce-eager",), ()),
    "vllm-suffix": Pair("vLLM", (), ("--speculative-config", _SUFFIX)),
    "vllm-our-drafts": Pair("vLLM", (), ("--speculative-config", _OURS)),
    "vllm-itself": Pair("vLLM"),
    "llama.cpp-itself": Pair("llama.cpp"),
}


def server(programs: Path, model: str, pair: Pair, options: tuple[str, ...]) -> list[str]:
    """The command of one side's server, but its port."""
    if pair.engine == "llama.cpp":
        command = ["-m", "llama_cpp.server", "--model", model, "--model_alias", "M"]
        how = ["--n_ctx", "2048", "--logits_all", "true"]
        return [str(programs / "python"), *command, *how, *options]
    command = ["serve", model, "--served-model-name", "M", "--max-logprobs", "20"]
    return [
        *(str(programs / "vllm"), *command),
        *("--dtype", "bfloat16", "--max-model-len", "2048"),
        *options,
    ]


def audit(a: int, b: int, limit: int, tokens: int, folder: Path) -> list[str]:
    """Arguments of `copyspec-eval`, for servers on these ports."""
    a_side, b_side = (
        f"base_url=http://127.0.0.1:{port}/v1,model=M,timeout={_TIMEOUT_SECONDS}" for port in (a, b)
    )
    command = ["audit", "--a", a_side, "--b", b_side, "--tasks", "mt_redundant"]
    asked = ["--limit", str(limit), "--gen-kwargs", f"max_gen_toks={tokens}"]
    return [*command, *asked, "--out", str(folder)]


def earlier_ports(folder: Path) -> list[int]:
    """The ports in an interrupted audit, which goes on only with the same sides; else none."""
    if not (path := folder / "order.json").exists():
        return []
    order = json.loads(path.read_text())
    return [int(re.findall(r":(\d+)/", order[side])[0]) for side in ("a", "b")]


def brief(findings: Mapping[str, Any]) -> dict[str, Any]:
    """What is shown of an audit, without texts and servers' settings."""
    version = findings["a"].get("version", {})
    names = ("verdict", "counts", "noise", "requests")
    return {name: findings[name] for name in names} | {"version": version}


def table(results: Mapping[str, Mapping[str, Any]]) -> str:
    """A row per pair: its answers by verdict, and A's noise; and a row for all of them."""
    rows: list[list[object]] = []
    for name, result in results.items():
        noise = result["noise"]["nats"]
        counts = [result["counts"][kind] or "" for kind in ("answers", *KINDS)]
        rows.append([name, *counts, "" if noise is None else f"{noise:.2g}", result["verdict"]])
    sums = (sum(each["counts"][kind] for each in results.values()) for kind in ("answers", *KINDS))
    rows.append(["all", *(number or "" for number in sums), "", ""])
    headings = ["pair", "answers", *(NAMES[kind] for kind in KINDS), "noise of A, nats", "verdict"]
    return terminal(*without_empty_columns(headings, rows))


def render(result: Mapping[str, Any]) -> str:
    """The table, under what was asked and where, and both sides' options."""
    hardware = result["manifest"]["hardware"]
    lines = [
        "# Engines that are not broken\n\n"
        f"{result['model']}, conversations of MT-Redundant with two turns; "
        f"{hardware['processor']}, {hardware['processors']} processors\n\n"
        f"{table(result['pairs'])}"
    ]
    for name, each in result["pairs"].items():
        pair = PAIRS[name]
        engine = f"{pair.engine} {each['version'].get('version', '')}".strip()
        sides = (" ".join(side) or "no options" for side in (pair.a, pair.b))
        lines.append(f"* {name}: {engine}, {' against '.join(sides)}")
    return "\n".join(lines) + "\n"
