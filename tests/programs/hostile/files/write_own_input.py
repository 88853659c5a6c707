"""Opens its standard input to write to it."""

try:
    open("/proc/self/fd/0", "r+b")
    print("done")
except OSError:
    print("refused")
