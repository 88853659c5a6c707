"""Raises the limits of its own memory, files and processes."""

import resource

raised = 0
for kind in (resource.RLIMIT_AS, resource.RLIMIT_FSIZE, resource.RLIMIT_CPU):
    try:
        resource.setrlimit(kind, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        raised += 1
    except (OSError, ValueError):
        continue
print("done" if raised else "refused")
