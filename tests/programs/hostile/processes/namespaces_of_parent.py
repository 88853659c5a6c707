"""Opens the namespaces of its parent, to join them."""

import os

opened = 0
for name in ("user", "mnt", "net", "pid", "ipc", "uts"):
    try:
        os.close(os.open(f"/proc/{os.getppid()}/ns/{name}", os.O_RDONLY))
        opened += 1
    except OSError:
        continue
print("done" if opened else "refused")
