"""Two problems in the form of HumanEval+ and of HumanEval, and their files."""

import gzip
import json
from pathlib import Path
from typing import Any

from copyspec_eval.harness.humaneval import HumanEvalTask

TASK = "humaneval_evalplus"
PLUS: list[dict[str, Any]] = [
    {
        "task_id": "HumanEval/0",
        "prompt": "from typing import List\n\n\ndef total(n: List[int]) -> int:\n    '''Sum.'''\n",
        "contract": "",
        "canonical_solution": "    return sum(n)\n",
        "entry_point": "total",
        "base_input": [[[1, 2]], [[3]]],
        "plus_input": [[[]], [[-1, -2]]],
        "atol": 0,
    },
    {
        "task_id": "HumanEval/1",
        "prompt": 'def half(number: float) -> float:\n    """ Half of it. """\n',
        "contract": "",
        "canonical_solution": "    return number / 2\n",
        "entry_point": "half",
        "base_input": [[4], [0.5]],
        "plus_input": [[3], [2**70]],
        "atol": 1e-6,
    },
]
BASE: list[dict[str, Any]] = [
    {
        **{name: row[name] for name in ("task_id", "prompt", "canonical_solution", "entry_point")},
        "test": f"def check(candidate):\n    assert candidate({given!r}) == {wanted!r}\n",
    }
    for row, given, wanted in zip(PLUS, ([1, 2], 4), (3, 2), strict=True)
]
CONFIG: dict[str, Any] = {
    "task": TASK,
    "class": HumanEvalTask,
    "test_split": "test",
    "output_type": "generate_until",
    "generation_kwargs": {"until": [], "do_sample": False, "max_gen_toks": 1024},
}


def write(folder: Path, rows: list[Any], name: str = "HumanEvalPlus.jsonl") -> Path:
    path = folder / "humaneval" / name
    path.parent.mkdir(exist_ok=True)
    content = "".join(json.dumps(row) + "\n" for row in rows).encode()
    path.write_bytes(gzip.compress(content) if name.endswith(".gz") else content)
    return path
