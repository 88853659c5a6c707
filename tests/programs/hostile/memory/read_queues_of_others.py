"""Sends to queues of messages that it has inherited, takes from them, and asks for their sizes."""

import ctypes
import errno
import platform

libc = ctypes.CDLL(None, use_errno=True)
calls = {"x86_64": (242, 243, 244, 245), "aarch64": (182, 183, 184, 185)}[platform.machine()]
answers = []
for call in calls:
    libc.syscall(call, -1, None, None, 0, None)
    answers.append(ctypes.get_errno())
print("done" if set(answers) - {errno.EPERM, errno.ENOSYS} else "refused")
