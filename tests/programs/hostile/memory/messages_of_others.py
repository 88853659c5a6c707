"""Counts the queues of messages of other processes; sends one and takes one that may be there."""

import ctypes
import errno
import platform

libc = ctypes.CDLL(None, use_errno=True)
calls = {"x86_64": (69, 70, 71), "aarch64": (189, 188, 187)}[platform.machine()]
send, receive, control = calls
message = ctypes.create_string_buffer(b"\1", 128)
count = libc.syscall(control, 0, 12, message)
answers = []
for arguments in ((send, 2**20, message, 1, 0o4000), (receive, 2**20, message, 1, 0, 0o4000)):
    libc.syscall(*arguments)
    answers.append(ctypes.get_errno())
answered = set(answers) - {errno.EPERM, errno.ENOSYS}
print("done" if count >= 0 or answered else "refused")
