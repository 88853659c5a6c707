"""Secrets that a user gives are in nothing that is written or printed, by any command."""

import itertools
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
    *("token", "hubToken", "api_key", "x-api-key", "Ocp-Apim-Key", "key", "password", "passwd"),
    *("pass phrase", "client_secret", "sig", "bearer", "authorization", "cookie", "session", "jwt"),
    *("pin", "credentials", "connection_string", "account", "license", "webhook", "dsn", "nonce"),
)
FORMS = (
    *("{}", "{}vLm2pT9wZr4", "hf_{}aB3dE6gH9jK2mN5", "Bearer {}-xyz", "Basic {}dXNlcjpwdw=="),
    *("sk-{} with spaces", 'quo"ted {}', "it's {}", "perc%40ent{}", "back\\slash{}", "{}, more"),
    *("ünïcode-{}", "https://u:{}@host/x", "https://host/x?k={}", "<b>{}&amp;", "multi\nline {}"),
)
VARIABLES = ("HF_TOKEN", "OPENAI_API_KEY", "MY_PASSWORD", "DB_PASS", "HTTP_COOKIE")
_numbers = itertools.count()


def planted(form: str = "{}vLm2pT9wZr4") -> str:
    """A secret, no two alike."""
    return form.format(f"s{next(_numbers):03}Qx")


def named() -> dict[str, Any]:
    """One under each name, in all forms, and some deep inside."""
    values: dict[str, Any] = dict(zip(NAMES, map(planted, itertools.cycle(FORMS)), strict=False))
    inner = {"headers": {"X-Auth": planted()}, "list": [planted(), {"deep": planted()}]}
    # Names that are recorded, where they are nobody's argument.
    return values | {"extra": inner, "options": {"token": planted(), "gamma": 3}}


def with_secrets(url: str) -> str:
    """One in each part of a URL that may have one."""
    user = f"{planted()}:{planted('perc%40ent{}')}"
    query = f"key={planted()}&sig={quote(planted('a/b+{}='))}&{planted()}"
    return f"{url.replace('://', f'://{user}@')}?{query}#{planted()}"


def variables() -> dict[str, str]:
    """Environment of a user who has many accounts."""
    database = f"postgres://me:{planted()}@db/x?sslkey={planted()}"
    return {"DATABASE_URL": database} | {name: planted() for name in VARIABLES}


class _Echo(Handler):
    server: "EchoServer"

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"])).decode()
        echo = f"{self.path}\n{self.headers}\n{body}\n[[5]]"
        self.server.received.append(echo)
        if len(self.server.received) <= self.server.num_failures:
            return self.send(echo.encode(), 500)
        message = {"role": "assistant", "content": echo}
        choice = {"index": 0, "finish_reason": "stop", "message": message}
        reply = {"id": "c", "object": "chat.completion", "created": 0, "model": "m"}
        return self.send(json.dumps({**reply, "choices": [choice]}).encode())


class EchoServer(InThread, ThreadingHTTPServer):
    """Answers with all that it was sent: as an error at first, then as a completion."""

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


def run(data: Path, *command: str, code: int = 0, **more: str) -> str:
    """Run a command; what it printed."""
    reported = {"COPYSPEC_DATA_DIR": str(data), "LMEVAL_LOG_LEVEL": "DEBUG"}
    done = subprocess.run(
        [str(BIN / command[0]), *command[1:]],
        env={**os.environ, **variables(), **reported, "NO_PROXY": "127.0.0.1", **more},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert done.returncode == code, done.stdout[-3000:]
    return done.stdout


def check(folder: Path, *printed: str) -> None:
    """No secret in any file, name of a file, or output."""
    texts = {str(path): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    texts |= {f"output {number}": text.encode() for number, text in enumerate(printed)}
    for name, text in texts.items():
        match = SECRET.search(text + name.encode())
        assert match is None, f"{name}: …{text[: match.end() + 60][-200:]!r}…"


@pytest.fixture
def secrets_of_this_test(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing else of this process is masked because of what is planted here."""
    monkeypatch.setattr(redaction, "_hidden", set())
    monkeypatch.setattr(redaction, "_named", set())


@pytest.mark.usefixtures("secrets_of_this_test")
def test_a_run_is_evaluated_judged_and_reported(
    byte_model, data, server, tmp_path, monkeypatch, capfd, caplog
):
    folder, logged = tmp_path / "out", StringIO()
    environment = variables() | {"COPYSPEC_DATA_DIR": str(data), "NO_PROXY": "127.0.0.1"}
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    handler = logging.StreamHandler(logged)
    logging.getLogger("lm_eval").addHandler(handler)
    proxies = {"http": f"http://me:{planted()}@proxy", **named()}
    options = {"token": planted(), "dtype": "float32", "proxies": proxies}
    with caplog.at_level(logging.DEBUG, "lm_eval"):
        evaluate_into(folder, byte_model, options, limit=1, metadata={"key": planted()})
    logging.getLogger("lm_eval").removeHandler(handler)
    assert "Initializing copyspec model" in logged.getvalue()

    rate = ["judge", str(folder), "--model", "j", "--base-url"]
    assert main([*rate, with_secrets(server.url)]) == 0
    server.num_failures = 1000
    shutil.rmtree(folder / "fastchat")
    wrong = (f"ftp://u:{planted()}@host", f"http://u:{planted('a/{}#')}@host")
    for url in (with_secrets(server.url), *wrong):
        assert main([*rate, url]) == 1
    with pytest.raises(SystemExit):
        main([*rate, server.url, "--api-key", planted(), f"--key={planted()}"])
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


ASKED = ("--tasks", "mt_redundant", "--limit", "1", "--apply_chat_template", "--log_samples")


@pytest.mark.slow
def test_what_fails_is_named_without_secrets(byte_model, server, tmp_path, data):
    server.num_failures = 1000
    chat = {"base": "local-chat-completions", "model": "m", "max_retries": 1, **named()}
    ours = {"pretrained": str(byte_model)}
    printed = [
        run(
            data,
            *("lm_eval", "--model", model, "--model_args", json.dumps(arguments), *ASKED),
            *("--output_path", str(tmp_path / "out")),
            code=1,
        )
        for model, arguments in (
            ("copyspec-timed", chat | {"base_url": with_secrets(f"{server.url}/chat/completions")}),
            ("copyspec-timed", chat | {"base_url": with_secrets("http://127.0.0.1:9/v1")}),
            ("copyspec", ours | {"quantization_config": {"k": planted("{}")}}),
            ("copyspec", ours | {"token": planted(), "gamma": 0}),
        )
    ]
    assert "Traceback" in printed[0]
    assert "copyspec-eval: error: quantization_config=" in printed[2]
    check(tmp_path, *printed)


@pytest.mark.slow
def test_a_server_is_timed(server, tmp_path, data):
    folder = tmp_path / "out" / "run"
    header = {"X-Key": planted(), "X-Short": planted("{}"), "X": planted("Bearer {}z")}
    arguments = named() | {
        "base": "local-chat-completions",
        "model": with_secrets("http://models/m"),
        "base_url": with_secrets(f"{server.url}/chat/completions"),
        "header": header,
        "auth_token": planted(),
        "max_gen_toks": 5,
        "max_retries": 3,
    }
    gen_kwargs = {"max_gen_toks": 5, "temperature": 0, **named()}
    printed = run(
        data,
        *("lm_eval", "--model", "copyspec-timed", *ASKED, "--show_config", "--write_out"),
        *("--model_args", json.dumps(arguments), "--gen_kwargs", json.dumps(gen_kwargs)),
        *("--metadata", f"fine=1,key={planted()}", "--hf_hub_log_args", f"token={planted()}"),
        *("--output_path", str(folder), "--use_cache", str(folder / "answers")),
    )
    received = "\n".join(server.received)
    assert header["X-Key"] in received, "the server gets them"
    assert gen_kwargs["pin"] in received
    assert main(["report", str(folder), "--out", str(tmp_path / "out" / "report")]) in (0, None)
    check(tmp_path / "out", printed)
    [made] = json.loads((folder / "manifest.json").read_text())["runs"]
    recorded = made["spec"]["model_args"]
    assert recorded["base_url"] == f"{server.url}/chat/completions"
    assert recorded["password"] == "not-recorded"
    assert made["spec"]["evaluation"]["gen_kwargs"]["max_gen_toks"] == 5
    assert "--limit 1" in made["command"]
    [results] = folder.rglob("results_*.json")
    config = json.loads(results.read_text())["config"]
    assert made["spec"]["model"] == config["model_args"]["model"] == "http://models/m"
    assert config["gen_kwargs"]["temperature"] == 0


@pytest.mark.slow
@pytest.mark.parametrize("door", [("lm_eval",), ("copyspec-eval", "run")], ids=["lm_eval", "run"])
def test_a_model_is_evaluated(byte_model, door, tmp_path, data):
    folder, file = tmp_path / "out", tmp_path / "config.yaml"
    proxies = {"http": f"http://me:{planted()}@proxy", "https": planted()}
    given = {"pretrained": str(byte_model), "gamma": 2, "token": planted(), "proxies": proxies}
    file.write_text(json.dumps({"model": "copyspec", "model_args": given}))
    printed = run(
        data,
        *(*door, "--config", str(file), *ASKED, "--device", "cpu", "--show_config"),
        *("--metadata", f"key={planted()}", "--gen_kwargs", "max_gen_toks=5"),
        *("--output_path", str(folder)),
        COPYSPEC_MODEL_ARGS=json.dumps({"token": planted()}),
    )
    check(folder, printed)
    [made] = json.loads((folder / "manifest.json").read_text())["runs"]
    assert made["spec"]["model"] == str(byte_model)
    assert made["spec"]["drafting"]["gamma"] == 2
    assert made["spec"]["model_args"]["token"] == "not-recorded"
    assert f"pretrained={byte_model}" in made["command"]


@pytest.mark.slow
def test_a_table_of_the_paper_is_made(byte_model, tmp_path, data):
    words = ["copyspec-eval", "paper", "copied-tokens", "--model", str(byte_model), "--limit", "1"]
    proxies = f"{{'http': 'http://u:{planted()}@h'}}"
    words += ["--model-args", f"dtype=float64,token={planted()},proxies={proxies}"]
    words += ["--out", str(tmp_path / "out"), "--gen-kwargs", "max_gen_toks=8"]
    check(tmp_path / "out", run(data, *words, "--plan"), run(data, *words))
    [command] = tmp_path.glob("out/*/command.json")
    assert "dtype=float64,token=not-recorded,proxies=not-recorded" in command.read_text()
    for arm in json.loads((command.parent / "manifest.json").read_text())["runs"]:
        assert arm["spec"]["model_args"]["token"] == "not-recorded"
