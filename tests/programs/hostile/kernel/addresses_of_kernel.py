"""Reads where what is in the kernel's memory, past the randomness of addresses."""

import re

known = 0
for name in ("kallsyms", "modules", "vmallocinfo", "timer_list", "net/unix", "self/stack"):
    try:
        known += re.search(r"\bffff[0-9a-f]{12}\b", open(f"/proc/{name}").read(4096)) is not None
    except OSError:
        continue
print("done" if known else "refused")
