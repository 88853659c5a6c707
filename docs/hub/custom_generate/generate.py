"""What transformers runs for `model.generate(…, custom_generate=REPOSITORY)`."""

from typing import Any

import copyspec_eval


def generate(model: Any, **arguments: Any) -> Any:
    """The sequences of `model.generate(**arguments)`, with copied drafts."""
    return model.generate(**arguments, custom_generate=copyspec_eval.custom_generate)
