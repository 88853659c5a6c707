"""Nothing in the user's cache folder, of any content or permission, stops a load or a run."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from byte_model import save_byte_model
from lm_eval.api.instance import Instance
from transformers import AutoModelForCausalLM

from copyspec_eval import generate
from copyspec_eval.harness.lm import CopySpecLM
from copyspec_eval.sources import FILES

PROMPT = "to be or not to be, that is the question: to be or not to"


def a_file(folder: Path) -> None:
    folder.write_bytes(b"\x00 no folder")


def a_link_to_itself(folder: Path) -> None:
    folder.symlink_to(folder)


def no_permission(folder: Path) -> None:
    garbage(folder)
    folder.chmod(0)


def garbage(folder: Path) -> None:
    """As earlier versions named their files, and folders in their place."""
    for number, content in enumerate([b"", b"\xff\x00", b"{}", b'{"steps": [[]]}', b"[1e999"]):
        file = folder / "exact_steps" / f"{number}.json"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(content)
    for public in FILES.values():
        (folder / public.sha256[:12] / Path(public.path).name).mkdir(parents=True)


def contents(folder: Path) -> list[Any]:
    """What lies there, and when it was written; as root, whatever its permissions are."""
    paths = [folder, *sorted(folder.rglob("*"))]
    return [(path, path.lstat().st_mode, path.lstat().st_mtime_ns) for path in paths]


@pytest.mark.parametrize("fill", [a_file, a_link_to_itself, no_permission, garbage])
def test_a_load_and_runs_beside_any_cache_folder(
    fill: Callable[[Path], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save_byte_model(tmp_path / "model")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    folder = tmp_path / "cache" / "copyspec_eval"
    folder.parent.mkdir()
    fill(folder)
    before = contents(folder)

    settings = {"until": [], "max_gen_toks": 12}
    request = Instance("generate_until", {}, (PROMPT, settings), 0, ("task", 0, 1))
    loaded = CopySpecLM(str(tmp_path / "model"), device="cpu", dtype="float32")
    [text] = loaded.generate_until([request], disable_tqdm=True)

    auto: Any = AutoModelForCausalLM
    model = auto.from_pretrained(tmp_path / "model").eval()
    [answer] = generate(model, loaded.tokenizer, PROMPT, max_new_tokens=12)
    assert answer.text == text
    assert contents(folder) == before
