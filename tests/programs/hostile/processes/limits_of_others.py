"""Sets limits of every process that is not its own, to what they are."""

import os
import resource

changed = 0
for name in os.listdir("/proc"):
    if name.isdigit() and int(name) != os.getpid():
        try:
            now = resource.prlimit(int(name), resource.RLIMIT_NOFILE)
            resource.prlimit(int(name), resource.RLIMIT_NOFILE, now)
            changed += 1
        except OSError:
            continue
print("done" if changed else "refused")
