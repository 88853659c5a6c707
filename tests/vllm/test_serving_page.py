"""The commands of docs/serving.md, run as printed, in an environment that has vLLM."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from timed_models import check_counts

from copyspec_eval import records
from copyspec_eval.harness.vllm_lm import STOCK
from copyspec_eval.records import TurnRecord

pytest.importorskip("vllm", reason="NOT TESTED without vLLM: see scripts/vllm_environment")
pytestmark = pytest.mark.slow

PAGE = Path(__file__).resolve().parents[2] / "docs" / "serving.md"
EVERY_TURN = {(doc, turn) for doc in (0, 1) for turn in (1, 2)}


def blocks(mark: str) -> list[str]:
    actual = re.findall(rf"<!-- {mark} -->\n```bash\n(.+?)```", PAGE.read_text("utf-8"), re.DOTALL)
    assert actual, mark
    return actual


PAIRED, COMPARE = blocks("with vLLM")
[SERVE] = blocks("a server")
[ASK] = blocks("with a server")
[GATE] = blocks("a gate")


@pytest.fixture
def environment(real_model: Path, questions: Path) -> dict[str, str]:
    return {
        **os.environ,
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "MODEL": str(real_model),
        "COPYSPEC_DATA_DIR": str(questions),
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "OMP_NUM_THREADS": str(len(os.sched_getaffinity(0))),
    }


def start(block: str, folder: Path, environment: dict[str, str], log: str) -> subprocess.Popen[str]:
    shell: dict[str, Any] = {"cwd": folder, "env": environment, "start_new_session": True}
    with (folder / log).open("w") as file:
        return subprocess.Popen(
            ["bash", "-euc", block], stdout=file, stderr=subprocess.STDOUT, text=True, **shell
        )


def run(block: str, folder: Path, environment: dict[str, str]) -> str:
    process = start(block, folder, environment, "log")
    assert process.wait(timeout=1800) == 0, (folder / "log").read_text()[-3000:]
    return (folder / "log").read_text()


@contextmanager
def serving(block: str, folder: Path, environment: dict[str, str]) -> Iterator[str]:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        port = str(unused.getsockname()[1])
    server = start(block.replace("8000", port), folder, environment, "server.log")
    try:
        wait_for(f"http://127.0.0.1:{port}/health", server, folder / "server.log")
        yield port
    finally:
        if server.poll() is None:
            os.killpg(server.pid, signal.SIGTERM)
        server.wait(timeout=60)


def wait_for(url: str, server: subprocess.Popen[str], log: Path) -> None:
    for _ in range(300):
        assert server.poll() is None, log.read_text()[-3000:]
        with suppress(OSError), urllib.request.urlopen(url):
            return
        time.sleep(1)
    raise TimeoutError(log.read_text()[-3000:])


def eager(block: str) -> str:
    """Without vLLM's compilation, which takes minutes on a CPU."""
    return block.replace("pretrained=$MODEL", "pretrained=$MODEL,enforce_eager=True").replace(
        "vllm serve $MODEL", "vllm serve $MODEL --enforce-eager"
    )


def rows(folder: Path) -> list[TurnRecord]:
    notes: list[str] = []
    answered = records.read(folder / "turns.jsonl", notes)
    assert not notes
    assert {(row.doc_id, row.turn) for row in answered} == EVERY_TURN
    return answered


def test_a_paired_run_is_complete_and_can_be_compared(environment: dict[str, str], tmp_path: Path):
    run(eager(PAIRED), tmp_path, environment)
    answered = rows(tmp_path / "runs" / "vllm")
    for row in answered:
        assert row.backend == "copyspec-vllm"
        assert row.counts.num_tokens == len(row.token_ids or ())
        check_counts(row)
        assert row.baseline is not None
        assert row.baseline.counts.num_forwards == row.baseline.counts.num_tokens
        assert (row.counts.latency_seconds or 0) > 0
    assert any(row.spans for row in answered)
    [manifest] = json.loads((tmp_path / "runs" / "vllm" / "manifest.json").read_text())["runs"]
    assert manifest["spec"]["dtype"] == "bfloat16"
    assert manifest["spec"]["drafting"]["paired"] is True
    assert "identical" in run(COMPARE, tmp_path, environment)


def test_the_stock_arm_is_vllm_as_it_sets_itself_up(environment: dict[str, str], tmp_path: Path):
    """On a CPU vLLM has the same modes for all; tests/unit/test_vllm_lm.py has others."""
    run(eager(PAIRED).replace("paired=true", "paired=true,stock=true"), tmp_path, environment)
    folder = tmp_path / "runs" / "vllm"
    answered = [row for row in records.read(folder / "turns.jsonl", []) if row.drafter == STOCK]
    assert {(row.doc_id, row.turn) for row in answered} == EVERY_TURN
    assert all(row.baseline and not row.attempts for row in answered)
    manifests = json.loads((folder / "manifest.json").read_text())["runs"]
    assert [each["run_id"] == answered[0].run_id for each in manifests] == [False, True]
    for each in manifests:
        modes = {"vllm.runner": "V1", "vllm.async_scheduling": "False"}
        assert each["spec"]["environment"].items() >= modes.items()
        assert each["spec"]["environment"]["vllm.compilation"].startswith("NONE")


def test_four_clients_of_a_server_have_every_turn(
    environment: dict[str, str], tmp_path: Path
) -> None:
    """And the gate: what the same server answers without drafts."""
    with serving(eager(SERVE), tmp_path, environment) as port:
        ask = ASK.replace("8000", port)
        clients = {
            name: start(
                ask.replace("runs/server", f"runs/{name}"), tmp_path, environment, f"{name}.log"
            )
            for name in ("server", "b", "c", "d")
        }
        for client in clients.values():
            assert client.wait(timeout=1800) == 0, (tmp_path / "server.log").read_text()[-3000:]
    for name in clients:
        answered = rows(tmp_path / "runs" / name)
        for row in answered:
            assert len(row.token_ids or ()) == row.counts.num_tokens
            assert row.counts.num_reused_tokens is not None
            assert row.counts.finish_reason is not None
            assert (row.counts.latency_seconds or 0) > 0
        assert any(row.attempts for row in answered)
    drafts = r"--speculative-config '.*?}' \\\n *--per-request-spec-decode-metrics detailed"
    plain, count = re.subn(drafts, "", SERVE, flags=re.DOTALL)
    assert count == 1
    with serving(eager(plain), tmp_path, environment) as port:
        ask = ASK.replace("8000", port).replace("runs/server", "runs/plain")
        run(ask, tmp_path, environment)
    assert not any(row.attempts for row in rows(tmp_path / "runs" / "plain"))
    run(GATE, tmp_path, environment)
