"""No secret is written down, and no setting is taken for one."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from recorded_runs import manifest, turn, write_run

from copyspec_eval.redaction import redacted, redacted_command, redacted_text
from copyspec_eval.reports.files import write
from copyspec_eval.reports.leaderboard import leaderboard
from copyspec_eval.reports.recorded import read_recorded

SECRET = "hf_aB3dE6gH9jK2mN5pQ8"
PLAIN = "correct horse,battery"


@pytest.mark.parametrize(
    "arguments",
    [
        ["--model_args", f"pretrained=M,token={SECRET},gamma=3"],
        ["--model_args", f"pretrained=M,token={PLAIN},gamma=3"],
        ["--model_args", json.dumps({"pretrained": "M", "token": SECRET})],
        [f"--model_args={json.dumps({'api_key': PLAIN})}"],
        ["--model_args", "pretrained=M", f"token={PLAIN}"],
        ["--model_args", "base_url=http://user:horse,battery@host/v1"],
        ["--model_args", f"base_url=http://host/v1?api_key={SECRET}&x=1"],
        ["--wandb_args", f"project=p,key={PLAIN}"],
        ["--model_args", f'header={{"Authorization": "Bearer {SECRET}"}}'],
        ["--model_args", f"system=Authorization: Bearer {SECRET}"],
        [f"--hf_token={PLAIN}"],
        ["--api-key", PLAIN],
        ["--hf_hub_log_args", f"hub_token={SECRET}"],
        ["--model_args", json.dumps({"extra": [{"headers": {"x": PLAIN}}]})],
        ["--model_args", f"pretrained={SECRET}"],
    ],
)
def test_a_secret_of_the_command_is_blanked_and_nothing_else(arguments: list[str]) -> None:
    shown = redacted_command(["lm_eval", "--tasks", "mt_bench", *arguments])
    assert shown.startswith("lm_eval --tasks mt_bench --")
    assert SECRET not in shown
    assert "horse" not in shown
    assert "battery" not in shown
    assert "***" in shown
    for kept in ("pretrained=M", "gamma=3", "project=p", "x=1", "host/v1"):
        assert (kept in shown) == (kept in " ".join(arguments))


@pytest.mark.parametrize(
    "argument",
    [
        "prompt_lookup_num_tokens=10",
        "num_draft_tokens=16",
        "max_new_tokens=5,add_bos_token=true",
        "pretrained=models/sk-small,tokenizer=slow",
        '{"eos_token": "</s>", "keys": 3}',
        "until=\nkey:,temperature=0",
        "pretrained=hf_transfer/hf_overrides",
        "system_instruction=Be basic: the bearer of news.",
    ],
)
def test_what_only_sounds_like_a_secret_stays(argument: str) -> None:
    assert redacted_command(["lm_eval", "--model_args", argument]).endswith(argument)


@pytest.mark.parametrize("name", ["HF_TOKEN", "OPENAI_API_KEY", "my_password", "GITHUB_TOKEN"])
def test_the_value_of_a_secret_variable_is_blanked_anywhere(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(name, "opensesame")
    assert redacted_text("cannot use 'opensesame' here") == "cannot use '***' here"
    monkeypatch.setenv(name, "true")
    assert redacted_text("this is true") == "this is true"


@pytest.mark.parametrize(
    "secret",
    [
        *("sk-proj-0123456789abcdef", "ghp_" + "a1" * 18, "github_pat_" + "a1" * 12),
        *("glpat-0123456789abc", "xoxb-0123456789", "AKIA0123456789ABCDEF", "hf_" + "a" * 34),
        "eyJhbGciOiJIUzI1.eyJzdWIiOiIxMjM0.c2lnbmF0dXJl",
    ],
)
def test_secrets_are_known_by_their_shape(secret: str) -> None:
    assert redacted({"note": [f"not {secret}, but"]}) == {"note": ["not ***, but"]}


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.sampled_from(["a b", "1,2", "x=y"]),
        lambda inner: (
            st.lists(inner) | st.dictionaries(st.sampled_from(["a", "num_tokens"]), inner)
        ),
    )
)
def test_other_values_are_as_they_were(value: object) -> None:
    assert redacted(value) == value


@given(
    st.lists(st.sampled_from(["token", "=", ":", " ", ",", "Bearer ", '"', "{", "@", "://", "a"]))
)
def test_what_is_blanked_stays_so(parts: list[str]) -> None:
    once = redacted_text("".join(parts))
    assert redacted_text(once) == once


def test_folders_of_this_machine_are_not_shared(tmp_path: Path) -> None:
    run = replace(
        manifest("a", model="/home/me/models/M", model_args={"peft": "~/adapters/A"}),
        command="lm_eval --model_args pretrained=/home/me/models/M --output_path /srv/x/runs",
    )
    folder = write_run(tmp_path / "secretive", [turn("a", 0, 1)], run)
    with (folder / "turns.jsonl").open("a") as file:
        file.write("torn\n")
    board = leaderboard([read_recorded(folder)])
    assert board.lines["model"].to_list() == ["M"]
    assert str(tmp_path) in board.notes[0], "the terminal names the file"
    for path in write(board, tmp_path / "out"):
        text = path.read_text("utf-8")
        assert not re.search("/home|/srv|~/|secretive", text), path.name
    assert "pretrained=M --output_path runs" in (tmp_path / "out" / "LEADERBOARD.md").read_text()
