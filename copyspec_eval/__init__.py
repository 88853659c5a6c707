"""CopySpec decoding for lm-evaluation-harness and for Python: faster answers, the same tokens."""

from importlib import import_module, metadata
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from copyspec_eval.api.custom_generate import custom_generate
    from copyspec_eval.api.generation import Answer, generate
    from copyspec_eval.api.streaming import stream

__all__ = ["Answer", "__version__", "custom_generate", "generate", "stream"]

_MODULES = {
    "Answer": "generation",
    "custom_generate": "custom_generate",
    "generate": "generation",
    "stream": "streaming",
}


# Not before they are asked for: the command line and lm-eval's hook need no torch.
def __getattr__(name: str) -> Any:
    if name == "__version__":
        return metadata.version("copyspec-eval")
    if name in _MODULES:
        return getattr(import_module(f"copyspec_eval.api.{_MODULES[name]}"), name)
    raise AttributeError(f"module 'copyspec_eval' has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
