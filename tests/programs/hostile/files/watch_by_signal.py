"""Has the kernel signal it when the rest of the machine reads a folder."""

import fcntl
import os
import signal

signal.signal(signal.SIGIO, signal.SIG_IGN)
try:
    fcntl.fcntl(os.open("/usr/bin", os.O_RDONLY), fcntl.F_NOTIFY, fcntl.DN_ACCESS)
    print("done")
except OSError:
    print("refused")
