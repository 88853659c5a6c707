"""Reads the hashes of the users' passwords."""

try:
    open("/etc/shadow", "rb").read()
    print("done")
except OSError:
    print("refused")
