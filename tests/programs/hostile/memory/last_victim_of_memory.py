"""Chooses that the kernel never ends it when memory is short."""

try:
    with open("/proc/self/oom_score_adj", "r+") as file:
        file.write("-1000")
    print("done")
except OSError:
    print("refused")
