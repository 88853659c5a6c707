"""Lists and opens what traces the kernel and with it all programs."""

import os

opened = 0
for folder in ("/sys/kernel/tracing", "/sys/kernel/debug", "/sys/kernel/debug/tracing"):
    try:
        opened += len(os.listdir(folder)) > 0
        os.close(os.open(f"{folder}/trace_marker", os.O_WRONLY))
    except OSError:
        continue
print("done" if opened else "refused")
