"""Secrets that a user gives are in nothing that is written or printed, by any command."""

import json
import logging
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from http.server import ThreadingHTTPServer
from io import StringIO
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from in_process import evaluate_into
from judge_server import write_judge_data
from lm_eval_command import BIN
from threaded_server import Handler, InThread

from copyspec_eval import redaction
from copyspec_eval.cli import main

SECRET = re.compile(rb"s\d{3}Qx")
"""What every planted secret has in it; the short ones are nothing else."""
NAMES = (
    *("token", "hf_token", "hubToken", "api_key", "apiKey", "x-api-key", "Ocp-Apim-Key", "key"),
    *("password", "passwd", "pwd", "pass phrase", "secret", "client_secret", "sig", "signature"),
    *("bearer", "authorization", "cookie", "session", "sas", "jwt", "pat", "pin", "credentials"),
    *("connection_string", "aws_secret_access_key", "account", "license", "webhook", "dsn", "salt"),
    *("refreshToken", "otp", "nonce", "passphrase"),
)
FORMS = (
    *("{}", "{}vLm2pT9wZr4", "hf_{}aB3dE6gH9jK2mN5", "Bearer {}-xyz", "Basic {}dXNlcjpwdw=="),
    *(
        "sk-{} with spaces",
        'quo"ted {}',
        "it's {}",
        "perc%40ent{}",
        "back\\slash{}",
        "{}, and more",
    ),
    *("ünïcode-{}", "https://u:{}@host/x", "https://host/x?k={}", "<b>{}&amp;", "multi\nline {}"),
)


class Planted:
    """Hands out secrets, no two alike."""

    def __init__(self) -> None:
        self.count = 0

    def new(self, form: str = "{}vLm2pT9wZr4") -> str:
        self.count += 1
        return form.format(f"s{self.count:03}Qx")

    def named(self) -> dict[str, Any]:
        """One under each name, in all forms, and some deep inside."""
        values: dict[str, Any] = {
            name: self.new(FORMS[index % len(FORMS)]) for index, name in enumerate(NAMES)
        }
        inner = {"headers": {"X-Auth": self.new()}, "list": [self.new(), {"deep": self.new()}]}
        # Names that are recorded, where they are nobody's argument.
        return values | {"extra": inner, "options": {"token": self.new(), "gamma": 3}}

    def url(self, url: str) -> str:
        """With a secret in each part that may have one."""
        user, query = (
            f"{self.new()}:{self.new('perc%40ent{}')}",
            "&".join([f"key={self.new()}", f"sig={quote(self.new('a/b+{}='))}", self.new()]),
        )
        return f"{url.replace('://', f'://{user}@')}?{query}#{self.new()}"

    def environment(self) -> dict[str, str]:
        """Of a user who has many accounts."""
        names = "HF_TOKEN OPENAI_API_KEY WANDB_API_KEY AWS_SECRET_ACCESS_KEY MY_PASSWORD"
        names += " GITHUB_PAT_TOKEN DB_PASS HTTP_COOKIE"
        secrets = {name: self.new() for name in names.split()}
        return secrets | {"DATABASE_URL": f"postgres://me:{self.new()}@db/x?sslkey={self.new()}"}


class _Echo(Handler):
    """Answers with all that it was sent: as an error at first, then as a completion."""

    server: "EchoServer"

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"])).decode()
        echo = f"{self.path}\n{self.headers}\n{body}\n[[5]]"
        self.server.received.append(echo)
        if len(self.server.received) <= self.server.num_failures:
            return self.send(echo.encode(), 500)
        choice = {"index": 0, "finish_reason": "stop"}
        choice["message"] = {"role": "assistant", "content": echo}
        reply = {"id": "c", "object": "chat.completion", "created": 0, "model": "m"}
        return self.send(json.dumps({**reply, "choices": [choice]}).encode())


class EchoServer(InThread, ThreadingHTTPServer):
    """A chat server that is careless with what it is told."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Echo)
        self.received: list[str] = []
        self.num_failures = 2


@pytest.fixture
def server() -> Iterator[EchoServer]:
    with EchoServer() as server:
        yield server


@pytest.fixture
def data(questions: Path, tmp_path: Path) -> Path:
    data = write_judge_data(tmp_path / "data")
    shutil.copytree(questions, data, dirs_exist_ok=True)
    return data


def run(data: Path, environment: dict[str, str], *command: str, code: int = 0) -> str:
    """Run a command; what it printed."""
    reported = {"COPYSPEC_DATA_DIR": str(data), "LMEVAL_LOG_LEVEL": "DEBUG"}
    done = subprocess.run(
        [str(BIN / command[0]), *command[1:]],
        env=os.environ | environment | reported | {"NO_PROXY": "127.0.0.1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    printed = done.stdout.decode()
    assert done.returncode == code, printed[-3000:]
    return printed


def check(folder: Path, *printed: str) -> None:
    """No secret in any file, name of a file, or output."""
    files = [path for path in folder.rglob("*") if path.is_file()]
    texts = {str(path): path.read_bytes() + str(path).encode() for path in files}
    texts |= {f"output {number}": text.encode() for number, text in enumerate(printed)}
    for name, text in texts.items():
        if match := SECRET.search(text):
            around = text[max(0, match.start() - 100) : match.end() + 60]
            pytest.fail(f"{name}: …{around.decode(errors='replace')}…")


@pytest.fixture
def secrets_of_this_test(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing else of this process is masked because of what is planted here."""
    monkeypatch.setattr(redaction, "_hidden", set())
    monkeypatch.setattr(redaction, "_named", set())


@pytest.mark.usefixtures("secrets_of_this_test")
def test_a_run_is_evaluated_judged_and_reported(
    byte_model, data, server, tmp_path, monkeypatch, capfd, caplog
):
    planted, folder, logged = Planted(), tmp_path / "out", StringIO()
    monkeypatch.setenv("COPYSPEC_DATA_DIR", str(data))
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    for name, value in planted.environment().items():
        monkeypatch.setenv(name, value)
    handler = logging.StreamHandler(logged)
    logging.getLogger("lm_eval").addHandler(handler)
    proxies = {"http": f"http://me:{planted.new()}@proxy", **planted.named()}
    options = {"token": planted.new(), "dtype": "float32", "proxies": proxies}
    with caplog.at_level(logging.DEBUG, "lm_eval"):
        evaluate_into(folder, byte_model, options, limit=1, metadata={"key": planted.new()})
    logging.getLogger("lm_eval").removeHandler(handler)
    assert "Initializing copyspec model" in logged.getvalue()

    rate = ["judge", str(folder), "--model", "j", "--base-url"]
    assert main([*rate, planted.url(server.url)]) == 0
    server.num_failures = 1000
    shutil.rmtree(folder / "fastchat")
    assert main([*rate, planted.url(server.url)]) == 1
    for url in (f"ftp://u:{planted.new()}@host", f"http://u:{planted.new('a/{}#')}@host"):
        assert main([*rate, url]) == 1
    with pytest.raises(SystemExit):
        main([*rate, server.url, "--api-key", planted.new(), f"--key={planted.new()}"])
    assert main(["report", str(folder), "--out", str(folder / "report")]) in (0, None)
    assert not main(["export", "fastchat", str(folder), "--out", str(tmp_path / "exported")])
    captured = capfd.readouterr()
    check(folder, captured.out, captured.err, logged.getvalue())
    assert "base URL 'ftp://host'" in captured.err
    assert "unrecognized arguments: --api-key --key" in captured.err
    [results] = folder.rglob("results_*.json")
    config = json.loads(results.read_text())["config"]
    assert config["model_args"]["pretrained"] == str(byte_model)
    assert config["model_args"]["token"] == "not-recorded"


@pytest.mark.slow
def test_what_fails_is_named_without_secrets(byte_model, data, server, tmp_path):
    planted, server.num_failures = Planted(), 1000
    timed = ("lm_eval", "--model", "copyspec-timed", "--tasks", "mt_redundant", "--limit", "1")
    asked = {"base": "local-chat-completions", "model": "m", "max_retries": 1, **planted.named()}
    here, nowhere = f"{server.url}/chat/completions", "http://127.0.0.1:9/v1"
    printed = [
        run(
            data,
            planted.environment(),
            *(*timed, "--apply_chat_template", "--output_path", str(tmp_path / "out")),
            *("--model_args", json.dumps(asked | {"base_url": planted.url(url)})),
            code=1,
        )
        for url in (here, nowhere)
    ]
    wrong: list[dict[str, Any]] = [
        {"quantization_config": {"k": planted.new("{}")}},
        {"token": planted.new(), "gamma": 0},
    ]
    printed += [
        run(
            data,
            planted.environment(),
            *("lm_eval", "--model", "copyspec", "--tasks", "mt_redundant", "--device", "cpu"),
            *("--model_args", json.dumps({"pretrained": str(byte_model)} | given)),
            code=1,
        )
        for given in wrong
    ]
    assert "Traceback" in printed[0]
    assert "copyspec-eval: error: quantization_config=" in printed[2]
    check(tmp_path / "out", *printed)


@pytest.mark.slow
def test_a_server_is_timed(data, server, tmp_path):
    planted, folder = Planted(), tmp_path / "out" / "run"
    arguments = planted.named() | {
        "base": "local-chat-completions",
        "model": planted.url("http://models/m"),
        "base_url": planted.url(f"{server.url}/chat/completions"),
        "header": {
            "X-Key": planted.new(),
            "X-Short": planted.new("{}"),
            "X": planted.new("Bearer {}z"),
        },
        "auth_token": planted.new(),
        "max_gen_toks": 5,
        "max_retries": 3,
    }
    gen_kwargs = {"max_gen_toks": 5, "temperature": 0, **planted.named()}
    printed = run(
        data,
        planted.environment(),
        *("lm_eval", "--model", "copyspec-timed", "--tasks", "mt_redundant", "--limit", "2"),
        *("--model_args", json.dumps(arguments), "--gen_kwargs", json.dumps(gen_kwargs)),
        *(
            "--metadata",
            f"fine=1,key={planted.new()}",
            "--hf_hub_log_args",
            f"token={planted.new()}",
        ),
        *("--output_path", str(folder), "--log_samples", "--show_config", "--write_out"),
        *("--apply_chat_template", "--use_cache", str(folder / "answers")),
    )
    assert planted.count >= 100
    received = "\n".join(server.received)
    assert arguments["header"]["X-Key"] in received, "the server gets them"
    assert gen_kwargs["pin"] in received
    assert main(["report", str(folder), "--out", str(tmp_path / "out" / "report")]) in (0, None)
    check(tmp_path / "out", printed)
    [run_] = json.loads((folder / "manifest.json").read_text())["runs"]
    assert run_["spec"]["model"] == "http://models/m"
    assert run_["spec"]["model_args"]["base_url"] == f"{server.url}/chat/completions"
    assert run_["spec"]["model_args"]["password"] == "not-recorded"
    assert run_["spec"]["evaluation"]["gen_kwargs"]["max_gen_toks"] == 5
    assert "--limit 2" in run_["command"]
    [results] = folder.rglob("results_*.json")
    config = json.loads(results.read_text())["config"]
    assert config["model_args"]["model"] == "http://models/m"
    assert config["gen_kwargs"]["temperature"] == 0


@pytest.mark.slow
@pytest.mark.parametrize("door", [("lm_eval",), ("copyspec-eval", "run")], ids=["lm_eval", "run"])
def test_a_model_is_evaluated(byte_model, data, door, tmp_path):
    planted, folder = Planted(), tmp_path / "out"
    proxies = {"http": f"http://me:{planted.new()}@proxy", "https": planted.new()}
    given = {"pretrained": str(byte_model), "dtype": "float64", "gamma": 2, "proxies": proxies}
    file = tmp_path / "config.yaml"
    file.write_text(
        json.dumps({"model": "copyspec", "model_args": given | {"token": planted.new()}})
    )
    printed = run(
        data,
        planted.environment() | {"COPYSPEC_MODEL_ARGS": json.dumps({"token": planted.new()})},
        *(*door, "--config", str(file), "--tasks", "mt_redundant", "--limit", "1"),
        *("--device", "cpu", "--metadata", f"key={planted.new()}"),
        *("--gen_kwargs", "max_gen_toks=5", "--apply_chat_template"),
        *("--output_path", str(folder), "--log_samples", "--show_config"),
    )
    check(folder, printed)
    [run_] = json.loads((folder / "manifest.json").read_text())["runs"]
    assert run_["spec"]["model"] == str(byte_model)
    assert run_["spec"]["drafting"]["gamma"] == 2
    assert run_["spec"]["model_args"]["token"] == "not-recorded"
    assert f"pretrained={byte_model}" in run_["command"]


@pytest.mark.slow
def test_a_table_of_the_paper_is_made(byte_model, data, tmp_path):
    planted, folder = Planted(), tmp_path / "out"
    words = ["paper", "copied-tokens", "--model", str(byte_model), "--limit", "1"]
    words += ["--out", str(folder), "--model-args"]
    words += [
        f"dtype=float64,token={planted.new()},proxies={{'http': 'http://u:{planted.new()}@h'}}"
    ]
    printed = [
        run(data, planted.environment(), "copyspec-eval", *words, "--plan"),
        run(data, planted.environment(), "copyspec-eval", *words),
    ]
    check(folder, *printed)
    [command] = folder.glob("*/command.json")
    assert "dtype=float64,token=not-recorded,proxies=not-recorded" in command.read_text()
    for arm in json.loads((command.parent / "manifest.json").read_text())["runs"]:
        assert arm["spec"]["model_args"]["token"] == "not-recorded"
