"""Opens files in which programs are named that the kernel runs as root."""

import os

opened = 0
for path in (
    "/sys/kernel/uevent_helper",
    "/sys/fs/cgroup/release_agent",
    "/proc/sys/fs/binfmt_misc",
):
    for file in (path, f"{path}/register"):
        try:
            os.close(os.open(file, os.O_WRONLY))
            opened += 1
        except OSError:
            continue
print("done" if opened else "refused")
