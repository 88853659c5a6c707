"""What `scripts/bench` measured, as Markdown."""

from collections.abc import Mapping
from typing import Any

from copyspec_eval.reports.tables import markdown

_HEADERS = [
    "",
    "decode tokens/s",
    "× hf greedy",
    "× none",
    "prefill seconds",
    "tokens per forward",
    "outside the forward",
    "peak GB",
]


def render(result: Mapping[str, Any]) -> str:
    """The table of `bench.json`, under what was measured and where."""
    traces, run = result["traces"], result["manifest"]
    turn = f" of turn {traces['turn']}" if traces["turn"] else ""
    tokens = result["arms"]["none"]["tokens"]
    versions = ", ".join(f"{name} {version}" for name, version in run["versions"].items())
    hardware, config = run["hardware"], run["config"]
    device = " + ".join(hardware["accelerators"]) if config["device"] != "cpu" else ""
    device = device or f"{hardware['processor']}, {config['threads']} threads"
    return (
        f"# Bench\n\n{traces['count']} answers{turn} in {traces['file']}, {tokens:,} tokens; "
        f"a model of the shape of Qwen2.5-0.5B; {config['dtype']}, batch 1; {device}; {versions}; "
        f"{run['started_at'][:10]}\n\n```\nscripts/{run['command']}\n```\n\n{table(result)}"
    )


def table(result: Mapping[str, Any]) -> str:
    """A row per way of decoding."""
    arms = result["arms"]
    none = arms["none"]["decode_tokens_per_second"]
    rows = [
        [
            name,
            f"{arm['decode_tokens_per_second']:.1f}",
            f"{arm['decode_speedup_over_hf_greedy']:.2f}",
            f"{arm['decode_tokens_per_second'] / none:.2f}",
            f"{arm['prefill_seconds']:.1f}",
            f"{arm['tokens_per_forward']:.2f}",
            f"{arm['outside_forward']:.1%}",
            f"{arm['peak_bytes'] / 1e9:.2f}",
        ]
        for name, arm in arms.items()
    ]
    return markdown(_HEADERS, rows)
