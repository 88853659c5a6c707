"""The table of `results/ARCHITECTURES.md`."""

from collections import Counter
from collections.abc import Sequence
from importlib import metadata

from matrix.outcomes import Outcome

_HEADER = "| architecture | outcome | cache | remark |"


def versions() -> dict[str, str]:
    """Of what decides the outcomes."""
    return {name: metadata.version(name).partition("+")[0] for name in ("transformers", "torch")}


def render(outcomes: Sequence[Outcome]) -> str:
    counts = Counter(outcome.kind for outcome in outcomes)
    installed = ", ".join(f"{name} {number}" for name, number in versions().items())
    return "\n".join(
        [
            "# Architectures",
            "",
            "Every model type that transformers maps to a causal language model, as a tiny random",
            "model in float32: checked and probed as a load does, then decoded greedily with",
            "CopySpec drafts, alone and in a batch, and compared with `model.generate` token by",
            "token. Sliding windows are shorter than the prompts. `refused` is what a user is told",
            "at the load; `not built` has no tiny model here, and says nothing about a real one.",
            "The cache is the engine's own, `copyspec`, or the model's, with `exact=false` and one",
            "request at a time, where the cache is copied before each draft.",
            "",
            f"Written by `scripts/architectures` with {installed}:",
            ", ".join(f"{count} {kind}" for kind, count in counts.most_common()) + ".",
            "",
            _HEADER,
            "| --- | --- | --- | --- |",
            *(
                f"| {item.architecture} | {item.kind} | {item.cache} | {item.detail} |"
                for item in outcomes
            ),
            "",
        ]
    )


def rows(text: str) -> list[str]:
    """Those of a rendered table."""
    return text.partition(_HEADER)[2].splitlines()[2:]


def architecture(row: str) -> str:
    return row.split("|")[1].strip()
