"""What this machine and environment offer: a few seconds, without a model."""

import os
import sys
from collections.abc import Callable, Iterator
from importlib.util import find_spec

from copyspec_eval import provenance
from copyspec_eval.errors import OptionError

_PROCESSOR_FEATURES = {"amx_bf16": "AMX", "avx512_bf16": "AVX-512-bf16", "bf16": "bf16"}
"""What speeds up bfloat16, by the system's names."""
_EXTRAS = {
    "completion": ("shtab", "completion in a shell"),
    "gguf": ("gguf", "GGUF checkpoints"),
    "humaneval": ("evalplus", "the tests of HumanEval and MBPP"),
    "judge": ("fastchat", "judges"),
    "similarity": ("gensim", "the paper's table similarity"),
    "tensorboard": ("tensorboard", "export tensorboard"),
    "vllm": ("vllm", "--model copyspec-vllm"),
}
"""A module of each optional extra, and what it is for."""


def examine() -> Iterator[tuple[str, str, bool]]:
    """Of each thing its name, its state, and whether it is broken; what raises an error is."""
    for package, number in provenance.versions().items():
        yield package, number, number == "not installed"
    for name, look in _LOOKS.items():
        try:
            yield name, look(), False
        except Exception as error:
            reason = str(error) or type(error).__name__
            # Only some tasks run programs, and they refuse without a sandbox.
            yield name, reason.splitlines()[0], not isinstance(error, OptionError)
    for extra, (module, what) in _EXTRAS.items():
        if find_spec(module) is None:
            yield "not installed", f"{what}: pip install 'copyspec-eval[{extra}]'", False


def _processor() -> str:
    machine, present = provenance.hardware(), provenance.processor_features().split()
    fast = [name for feature, name in _PROCESSOR_FEATURES.items() if feature in present]
    bfloat16 = f"bfloat16 by {', '.join(fast)}" if fast else "neither AMX nor AVX-512-bf16"
    return f"{machine['processor']}, {machine['processors']} processors, {bfloat16}"


def _devices() -> str:
    return ", ".join(provenance.hardware()["accelerators"]) or "none: models run on the processor"


def _kernels() -> str:
    import torch

    from copyspec_eval.decoding import kernels
    from copyspec_eval.decoding.kernels import library

    path = library.compiler()
    if path is None:
        return "torch's, which are slower: no C++ compiler; install g++ or set CXX"
    if not kernels.is_available(torch.bfloat16):
        return f"torch's, which are slower: ours do not compile with {path}"
    folder = library.private_cache()
    where = f"cached in {folder}" if folder else "again in each process: no cache folder is private"
    return f"ours, compiled by {path}, {where}"


def _exact_mode() -> str:
    import torch

    from copyspec_eval.decoding import kernels

    if provenance.hardware()["accelerators"]:
        return "fixed width on the GPU, since its libraries choose kernels by shape"
    if not kernels.is_available(torch.bfloat16):
        return "fixed width: without our kernels, torch's are chosen by shape"
    return "invariant in bfloat16 and float32, by our kernels; fixed width in float16"


def _hook() -> str:
    if os.environ.get("COPYSPEC_EVAL_AUTOLOAD") == "0":
        return "off, by COPYSPEC_EVAL_AUTOLOAD=0; use copyspec-eval run"
    if "_copyspec_eval_autoload" not in sys.modules:
        return "not installed, so lm_eval does not find our models; use copyspec-eval run"
    return "on: lm_eval finds our models and tasks"


def _sandbox() -> str:
    from copyspec_eval.sandbox import programs

    return programs.level().description


_LOOKS: dict[str, Callable[[], str]] = {
    "processor": _processor,
    "devices": _devices,
    "kernels": _kernels,
    "exact mode": _exact_mode,
    "start-up hook": _hook,
    "sandbox": _sandbox,
}
