"""The step loop on accelerators that are only pretended: see `pretended_device`."""

import copy
import functools
import inspect
import textwrap
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import transformers as hf
from accelerate import dispatch_model
from asking import asked, engine, greedy, sampling
from benchmarks import device_check
from benchmarks.device_check import check_device
from benchmarks.device_subject import SIZES, Subject
from byte_model import loaded
from pretended_device import DeviceError, PretendedDevice
from simulated_graph import simulated_graphs
from steps import first_mismatch
from timed_models import CONTEXTS, instances
from tiny_models import prompts, tiny_model
from watched_steps import Taken, watched
from ways import WAYS

from copyspec_eval.decoding import attention, forward
from copyspec_eval.decoding import engine as engine_module
from copyspec_eval.decoding.cache import RowCache
from copyspec_eval.decoding.choosing import TokenChooser
from copyspec_eval.decoding.draft_model import DraftModel
from copyspec_eval.decoding.prefix_cache import PrefixCache
from copyspec_eval.decoding.sequence import Sequence
from copyspec_eval.decoding.stopping import StopRule
from copyspec_eval.decoding.stopwatch import wait_for
from copyspec_eval.decoding.trial import check_cache, choose_cache
from copyspec_eval.harness.backends.hf import HFBackend
from copyspec_eval.harness.lm import CopySpecLM
from copyspec_eval.pairs.differences import Rescorer
from copyspec_eval.types import DraftOptions, ExactMode, Generation

slow = pytest.mark.slow
DEVICES = ("cuda", "mps", "xpu")


def penalised_draws() -> TokenChooser:
    """With processors of all kinds; made where the device is, as by the harness."""
    warpers = hf.TemperatureLogitsWarper(0.8), hf.TopKLogitsWarper(20), hf.TopPLogitsWarper(0.9)
    return sampling(hf.RepetitionPenaltyLogitsProcessor(1.2), *warpers, seed=5)


@dataclass(frozen=True)
class Case:
    model_type: str = "qwen2"
    options: DraftOptions = WAYS["suffix+tree"]
    batch_size: int = 3
    exact: ExactMode | None = None  # as if it had been checked: nothing here looks at bits
    chooser: Callable[[], TokenChooser] = greedy
    delta: int = 0
    keeps_prefixes: bool = False

    def answers(self, device: str | None = None, model: Any = None) -> list[Generation]:
        """On that device, or as they are on the CPU."""
        drafting = DraftModel(on(device, tiny_model("llama")), self.delta) if self.delta else None
        made = engine(
            model or on(device, tiny_model(self.model_type)),
            self.options,
            self.exact,
            batch_size=self.batch_size,
            draft_model=drafting,
            prefix_cache=PrefixCache(10**8) if self.keeps_prefixes else None,
        )
        answers = []
        for _ in range(1 + self.keeps_prefixes):
            rules = [(ids, StopRule(8 + 3 * n)) for n, ids in enumerate(prompts()[1:])]
            answers += made.generate([Sequence(*each, self.chooser()) for each in rules])
        return answers


def on(device: str | None, model: Any) -> Any:
    if device is None:
        return model
    model = copy.deepcopy(model).to(device)
    # As GPT-2's own is: for a token of padding, its module looks in every forward.
    model.config.pad_token_id = None
    return model


CASES: dict[str, Case] = {
    "sampling": Case(chooser=penalised_draws),
    "draft model": Case(options=WAYS["copyspec"], delta=4),
    "sampling with a draft model": Case(options=WAYS["copyspec"], delta=3, chooser=penalised_draws),
    "prefix cache": Case(keeps_prefixes=True),
    "exact": Case(options=WAYS["suffix"], exact=ExactMode(16)),
    "exact, packed": Case(options=WAYS["suffix"], exact=ExactMode(), keeps_prefixes=True),
    **{f"batch, {name}": Case(options=way) for name, way in WAYS.items()},
    "one row": Case(options=WAYS["copyspec"], batch_size=1),
    **{
        kind: Case(kind, WAYS["suffix"], exact=ExactMode(16))
        for kind in ("gemma2", "gpt2", "gpt_oss", "mixtral")
    },
}
CORE = ("sampling", "prefix cache", "gpt_oss")
"""Those that are not slow on any device: in them are NumPy, copies, and sums in a given dtype."""


def facts(answers: list[Generation]) -> list[Any]:
    return [(a.token_ids, a.counts.num_forwards, a.attempts, a.spans) for a in answers]


@functools.cache
def on_the_cpu(name: str) -> list[Any]:
    return facts(CASES[name].answers())


def check_all(taken: Iterable[Taken]) -> None:
    for one in taken:
        one.check()


def checked_facts(name: str, device: str) -> list[Any]:
    with PretendedDevice(device) as pretended, watched(pretended) as taken:
        actual = CASES[name].answers(device)
    assert {one.what for one in taken} == {"prefill", "step"}
    check_all(taken)
    to_the_host = [e for e in pretended.events if e.kind == "read" and e.place[:8] == "cache.py"]
    assert bool(to_the_host) == CASES[name].keeps_prefixes, "where the prefix cache is"
    return facts(actual)


@pytest.mark.parametrize(
    ("name", "device"),
    [
        pytest.param(name, device, marks=() if device == "cuda" or name in CORE else slow)
        for name in CASES
        for device in DEVICES
    ],
)
def test_answers_are_the_same_and_each_step_is_read_once(name, device):
    assert checked_facts(name, device) == on_the_cpu(name)


def test_a_difference_is_explained_on_the_device():
    with PretendedDevice("mps"):
        model = on("mps", tiny_model("qwen2"))
        explain = Rescorer(model, engine(model, num_draft_tokens=0), engine(model)).explain
        [request] = asked(prompts()[:1], 12, lambda: sampling(hf.TemperatureLogitsWarper(0.8)))
        difference: Any = explain(request, [7, 8, 9], [7, 8, 5])
    assert difference.margin is not None


def test_layers_on_two_devices():
    """As `parallelize=True` spreads them."""
    case = "batch, suffix+tree"
    first, second = ("embed_tokens", "rotary_emb", "layers.0"), ("layers.1", "norm")
    devices = {f"model.{name}": "cuda:0" for name in first} | {"lm_head": "cuda:1"}
    devices |= {f"model.{name}": "cuda:1" for name in second}
    with PretendedDevice("cuda") as pretended, watched(pretended) as taken:
        model = on("cuda:0", tiny_model("qwen2"))
        dispatch_model(model, devices, main_device="cuda:0")
        actual = CASES[case].answers("cuda", model)
        assert {str(weight.device) for weight in model.parameters()} == {"cuda:0", "cuda:1"}
    assert facts(actual) == on_the_cpu(case)
    check_all(taken)


@pytest.mark.parametrize("exact", [True, False])
def test_what_is_measured_at_load_is_on_the_device(exact):
    with PretendedDevice("mps") as pretended:
        model = on("mps", tiny_model("mixtral"))
        check_cache(model, "copyspec", exact=exact, batch_size=2)
        if exact:
            assert first_mismatch(model, prompts()[1], ExactMode(8), 3, 2) is None
        assert pretended.events


def test_lm_evals_model_is_on_the_device(byte_model, monkeypatch):
    model, words = loaded(byte_model)
    options: dict[str, Any] = {"exact": False, "tree": True, "paired": True, "prefix_cache": "1GB"}
    settings = {"do_sample": True, "temperature": 0.8, "top_p": 0.9, "suppress_tokens": [7]}

    def answers(model):
        torch.manual_seed(0)
        lm = CopySpecLM(pretrained=model, tokenizer=words, batch_size=2, **options)
        given = {"max_gen_toks": 10, **settings}
        return lm.generate_until(instances(given, contexts=CONTEXTS[:3]), disable_tqdm=True)

    wanted = answers(model)
    with PretendedDevice("mps") as pretended:
        there = on("mps", model)
        choice = choose_cache(there, exact=False, batch_size=2)
        # The trial is given its choices, so it waits for none.
        monkeypatch.setattr("copyspec_eval.session.session.choose_cache", lambda *_, **__: choice)
        with watched(pretended) as taken:
            assert answers(there) == wanted
    check_all(taken)


def test_the_check_of_a_gpu_runs_on_one(monkeypatch):
    sizes = replace(SIZES["cpu"], prompt_lengths=(5, 33), budget=2, rounds=1)
    monkeypatch.setattr(device_check, "DTYPES", (torch.float32,))
    monkeypatch.setattr(device_check, "BATCH_SIZES", (2,))
    for name in ("memory_allocated", "max_memory_allocated", "reset_peak_memory_stats"):
        monkeypatch.setattr(torch.cuda, name, lambda device: 0)
    monkeypatch.setattr(device_check, "_ON_CUDA", [ExactMode(16, "captured")])
    subject = Subject("cuda", sizes)
    with PretendedDevice("cuda"), simulated_graphs():
        parts = dict(check_device(subject))
    assert [name for name, part in parts.items() if not part["ok"]] == []
    modes = [(row["is_timed"], row["steps"]) for row in parts["mode"]["modes"]]
    assert modes == [(False, "captured"), (True, "captured")]


def test_prompts_of_all_lengths_have_one_shape_of_attention(monkeypatch):
    """CuDNN's prepares itself at each new shape, for 80 ms in a model of 30 layers."""
    torchs, shapes = torch.nn.functional.scaled_dot_product_attention, set()

    def noted(query, key, *given, **options):
        shapes.add((query.shape, key.shape))
        return torchs(query, key, *given, **options)

    monkeypatch.setattr(torch.nn.functional, "scaled_dot_product_attention", noted)
    case = Case(options=WAYS["suffix"], exact=ExactMode(16, "captured"))
    assert len({len(prompt) for prompt in prompts()[1:]}) > 2
    with PretendedDevice("cuda"), simulated_graphs():
        case.answers("cuda")
    assert len(shapes) == 2  # of prompts and of steps


def test_a_captured_step_is_one_upload_and_one_wait():
    case = Case(options=WAYS["suffix"], exact=ExactMode(16, "captured"))
    with PretendedDevice("cuda") as pretended, simulated_graphs(), watched(pretended) as taken:
        actual = case.answers("cuda")
    assert facts(actual) == facts(replace(case, exact=ExactMode(16)).answers())
    steps = [one for one in taken if one.what == "step"]
    assert steps
    for step in steps:
        assert [event.kind for event in step.events] == ["upload", "read"]


def planted(item: Any, name: str, old: str, new: str) -> Any:
    """A function of ours, with another text where `old` stands once in it."""
    function = inspect.unwrap(getattr(item, name))
    text = "from __future__ import annotations\n" + textwrap.dedent(inspect.getsource(function))
    assert text.count(old) == 1
    scope: dict[str, Any] = {}
    exec(compile(text.replace(old, new), name, "exec"), function.__globals__, scope)
    return scope[name]


READ = "assert key.isfinite().all()\n    for known, shape"
LISTED, EACH = "logits.argmax(-1).tolist()", "[int(token) for token in logits.argmax(-1)]"
PLANTED: dict[str, tuple[str, Any, str, str, str]] = {
    "a draw": ("sampling", TokenChooser, "_gumbel_max", "scores.cpu()", "scores"),
    "keys": ("batch, suffix+tree", forward, "_step", ", device=slots.device", ""),
    "tokens": ("exact", forward, "place", ".to(input_device(model))", ""),
    "a read for each token": ("one row", engine_module, "argmax_tokens", LISTED, EACH),
    "a read in a layer": ("exact", attention, "_masked_blocks", "for known, shape", READ),
    "a copy in each layer": ("exact", RowCache, "place", "_extent = rows", "_extent = rows.cpu()"),
}
"""A case, and a function of ours with its text and a wrong one: the first three leave something on
the host, the others wait for the device once more."""


@pytest.mark.parametrize("name", PLANTED)
def test_a_planted_defect_is_noticed(name, monkeypatch):
    case, item, function, *texts = PLANTED[name]
    monkeypatch.setattr(item, function, planted(item, function, *texts))
    with pytest.raises((DeviceError, AssertionError), match=r"Event|of tensors|NumPy cannot"):
        checked_facts(case, "cuda")


@pytest.mark.parametrize("device", DEVICES)
def test_the_clock_of_hf_waits_for_any_accelerator(device):
    with PretendedDevice(device) as pretended:
        wait_for(torch.device("cpu"))
        assert not pretended.events
        wait_for(torch.device(device))
        backend: Any = SimpleNamespace(device=torch.device(device))
        assert HFBackend._now(backend) > 0
    assert [event.kind for event in pretended.events] == ["wait", "wait"]
