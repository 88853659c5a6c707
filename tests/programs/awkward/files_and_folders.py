"""Works in a folder of its own, with a file."""

import os
import tempfile
from pathlib import Path


def total(numbers):
    os.chdir(tempfile.mkdtemp())
    Path("numbers").write_text(" ".join(map(str, numbers)))
    return sum(int(word) for word in Path("numbers").read_text().split())
