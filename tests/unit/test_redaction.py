"""Only declared settings are recorded, no text has the values of others, no row their texts."""

import importlib
import json
import logging
import re
from collections.abc import Iterator
from dataclasses import fields, replace
from typing import Any

import pytest
from benchmarks.sharing import share_rows, tokens_sha256
from hypothesis import given
from hypothesis import strategies as st
from lm_eval.config.evaluate_config import EvaluatorConfig
from recorded_runs import board, manifest, turn, write_run
from sample_rows import PAIRED_ROW, ROW, SPEC

from copyspec_eval import records, redaction
from copyspec_eval.errors import OptionError
from copyspec_eval.harness import autoload
from copyspec_eval.harness import recorded as recording
from copyspec_eval.harness.recorded import Arguments, recorded, with_environment
from copyspec_eval.paper.plan import arguments as paper_arguments
from copyspec_eval.redaction import address, hide, masked, without_secrets
from copyspec_eval.reports.page.build import write_report
from copyspec_eval.types import DraftOptions

SECRET = "aB3dE6gH9jK2mN5pQ8"


@pytest.fixture(autouse=True)
def nothing_hidden() -> Iterator[None]:
    """What a test hides is masked neither in the next nor by tests elsewhere."""
    importlib.reload(redaction)
    yield
    importlib.reload(redaction)


def test_what_decides_a_run_is_recorded():
    settings = {
        **{"pretrained": "org/M", "dtype": "float32", "revision": "main"},
        **{"trust_remote_code": True, "base": "vllm", "speculative_config": None},
        **{"enable_thinking": False, "add_bos_token": True, "think_end_token": "</think>"},
        **{"prompt_lookup_num_tokens": 10, "temperature": 0.5, "max_gen_toks": 5},
        **{"until": ["\n"], "do_sample": True, "top_p": None, "num_concurrent": 4},
        **{"base_url": "http://host:80/v1/completions", "tokenizer": "a/b"},
        **{field.name: 3 for field in fields(DraftOptions)},
        **{"exact": False, "paired": True, "arms": ["none", "copyspec+gamma=5"]},
    }
    assert recorded(settings) == settings


@pytest.mark.parametrize(
    "name",
    ["token", "hf_token", "auth_token", "header", "api_key", "proxies", "anything", "x-y", ""],
)
@pytest.mark.parametrize("value", ["7", "a", SECRET, 1234, 0.5, {"a": SECRET}, [SECRET]])
def test_anything_else_is_recorded_by_name_alone(name, value):
    hidden, inside = {name: "not-recorded"}, "chat_template_args"
    assert recorded({name: value}) == hidden
    assert recorded({inside: {name: value}}) == {inside: hidden}
    assert f"{Arguments({'gamma': 3, name: value})}" == str({"gamma": 3, **hidden})


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("https://token@host", "https://host"),
        ("https://me:p@w@host/v1", "https://host/v1"),
        ("me:pw@host/v1?key=abc", "host/v1"),
        ("/v1?key=abc", "/v1"),
        ("http://[::1]:80/v1", "http://[::1]:80/v1"),
        ("https://me:p/w@host", "not-recorded"),
        ("https://me:p#w@host", "not-recorded"),
        ("https://me:12/w@host", "not-recorded"),
        ("https://[me:pw@host", "not-recorded"),
        ("https://host?u=http://x:y@z", "not-recorded"),
        ("s3://bucket/models/M", "s3://bucket/models/M"),
    ],
)
def test_a_url_is_shown_by_scheme_host_port_and_path(url, shown):
    assert address(url) == shown
    assert recorded({"base_url": url}) == {"base_url": shown}


@pytest.mark.parametrize(
    ("given", "text", "shown"),
    [
        (SECRET, f"bad key {SECRET}!", "bad key not-recorded!"),
        (SECRET, f"x{SECRET}y", "xnot-recordedy"),
        ('a"b c%/é longer', json.dumps('a"b c%/é longer'), '"not-recorded"'),
        ("a b/c longer", "?k=a%20b%2Fc%20longer or a+b%2Fc+longer", "?k=not-recorded or not-"),
        ("a%40b-longer", "password a@b-longer", "password not-recorded"),
        ("<a&b>-longer", "&lt;a&amp;b&gt;-longer", "not-recorded"),
        (f"Bearer {SECRET}", f"wrong bearer: {SECRET}", "wrong bearer: not-recorded"),
        ({"X": [SECRET]}, f"header X: {SECRET}", "header X: not-recorded"),
        (f"http://u:{SECRET}@h/?k=abcdefgh", f"{SECRET} abcdefgh", "not-recorded not-recorded"),
        ("q7Zk", "bad key q7Zk, xq7Zk stays", "bad key not-recorded, xq7Zk stays"),
        ("7", "{'pin': '7'} and 7 or pin=7 or pin=77", "{'pin': 'not-recorded'} and 7 or pin=not-"),
        (12345678, "pin 12345678", "pin not-recorded"),
        ("true", "this is true", "this is true"),
        (None, "None", "None"),
    ],
)
def test_what_is_not_recorded_is_in_no_text(given, text, shown):
    recorded({"pin": given})
    assert without_secrets(text).startswith(shown)


@pytest.mark.parametrize(
    "name", ["HF_TOKEN", "OPENAI_API_KEY", "my_password", "DB_PASS", "myToken"]
)
def test_the_value_of_a_secret_variable_is_masked_anywhere(name, monkeypatch):
    monkeypatch.setenv(name, "opensesame")
    monkeypatch.setenv("DATABASE", "postgres://me:closesame@db/x")
    assert masked("use 'opensesame', closesame") == "use 'not-recorded', not-recorded"
    monkeypatch.setenv(name, "true")
    assert masked("this is true") == "this is true"


@given(st.text() | st.lists(st.sampled_from([*"@?=/a:#", "http://"])).map("".join))
def test_a_text_without_secrets_and_urls_stays(text):
    assert without_secrets(text) == text
    assert masked(text) == text or "/" in text


def test_log_records_are_masked(caplog):
    hide("token", SECRET)
    redaction.mask_logs()
    logger = logging.getLogger("somebody.elses")
    logger.warning("%s of %s", 3, {"token": SECRET})
    logger.error("failed", exc_info=ValueError(SECRET))
    assert "3 of {'token': 'not-recorded'}" in caplog.text
    assert "ValueError: not-recorded" in caplog.text
    assert SECRET not in caplog.text


def test_a_command_is_recorded_as_it_was_parsed():
    autoload.watch_command()
    given = {"pretrained": "M", "token": SECRET}
    settings = {"gen_kwargs": {"until": ["a b"], "key": SECRET}, "log_samples": True, "limit": 2.0}
    settings |= {"tasks": ["mt_bench", "mt_redundant"], "hf_hub_log_args": {"token": SECRET}}
    EvaluatorConfig(model="copyspec", model_args=given | {"gamma": 3}, **settings)
    before = recording.command()
    assert before == (
        "lm_eval --model copyspec --model_args pretrained=M,token=not-recorded,gamma=3 "
        "--tasks mt_bench,mt_redundant --limit 2 --log_samples "
        """--gen_kwargs '{"until": ["a b"], "key": "not-recorded"}' """
        "--hf_hub_log_args token=not-recorded"
    )
    stock = EvaluatorConfig(model="hf", model_args=given)
    assert SECRET in repr(stock), "other models are left alone"
    assert recording.command() == before


def test_secrets_come_by_the_environment(monkeypatch):
    shown, secrets = paper_arguments(f"dtype=float64,token={SECRET},exact=false,store=[1]")
    hidden = dict.fromkeys(("token", "store"), "not-recorded")
    assert shown == {"dtype": "float64", "exact": False, **hidden}
    assert secrets == {"token": SECRET, "store": [1]}
    with pytest.raises(OptionError, match=r"token=not-recorded .* set COPYSPEC_MODEL_ARGS="):
        with_environment(shown)
    monkeypatch.setenv("COPYSPEC_MODEL_ARGS", json.dumps(secrets))
    assert with_environment(shown) == {**shown, **secrets}
    monkeypatch.setenv("COPYSPEC_MODEL_ARGS", f"token={SECRET}")
    with pytest.raises(OptionError, match=r"COPYSPEC_MODEL_ARGS is not a JSON object"):
        with_environment({})
    with pytest.raises(OptionError, match="--model-args: "):
        paper_arguments("{torn")


def test_folders_of_this_machine_are_not_shared(tmp_path):
    stored = {"store": "/home/me/a:/home/me/b", "store_sha256": "0"}
    spec = {"model": "/home/me/models/M", "model_args": {"peft": "~/adapters/A"}}
    run = manifest("a", drafting=SPEC.drafting | stored, **spec)
    arguments = f"pretrained={spec['model']},store={stored['store']}"
    run = replace(run, command=f"lm_eval --model_args {arguments} --output_path /srv/x/runs")
    row = turn("a", 0, 1, drafter="suffix + store=a:b")
    folder = write_run(tmp_path / "secretive", [row], run)
    with (folder / "turns.jsonl").open("a") as file:
        file.write("torn\n")
    actual = board(folder)
    assert actual.lines["model"].to_list() == ["M"]
    assert str(tmp_path) in actual.notes[0], "the terminal names the file"
    for path in write_report(actual, tmp_path / "out"):
        text = path.read_text("utf-8")
        assert not re.search("/home|/srv|~/|secretive", text), path.name
    command = "pretrained=M,store=a:b --output_path runs"
    assert command in (tmp_path / "out" / "LEADERBOARD.md").read_text()


def test_figures_stay_and_texts_of_others_go(tmp_path):
    theirs: Any = replace(PAIRED_ROW, prompt=SECRET, text=f"a {SECRET}", answer=SECRET)
    ours = replace(ROW, task="quickstart_extractive", prompt="words of ours")
    path = write_run(tmp_path, [theirs, ours]) / "turns.jsonl"
    share_rows(path)
    shared = path.read_bytes()
    assert SECRET not in shared.decode()
    row: Any
    row, ours_after = records.read(path, [])
    assert ours_after == ours
    assert (row.prompt_sha256, row.counts) == (theirs.prompt_sha256, theirs.counts)
    assert (row.token_ids, row.tokens_sha256) == (None, tokens_sha256(theirs.token_ids))
    assert (row.answer_ids, row.baseline.tokens_sha256) == ((), tokens_sha256(theirs.answer_ids))
    share_rows(path)
    assert path.read_bytes() == shared, "a second time changes nothing"
