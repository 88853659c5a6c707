"""Opens the compiled form of a module, which Python trusts without a look at the source."""

import importlib.util
import os

try:
    open(importlib.util.cache_from_source(os.__file__), "r+b").close()
    print("done")
except OSError:
    print("refused")
