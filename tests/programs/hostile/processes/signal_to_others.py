"""Sends a signal to every process that is not its own."""

import os

others = {int(name) for name in os.listdir("/proc") if name.isdigit()} - {1, os.getpid()}
sent = 0
for process in others:
    try:
        os.kill(process, 0)
        sent += 1
    except OSError:
        continue
print("done" if sent else "refused")
