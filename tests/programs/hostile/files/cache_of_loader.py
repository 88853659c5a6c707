"""Opens the list of libraries that every program loads, to change it."""

try:
    open("/etc/ld.so.cache", "r+b").close()
    print("done")
except OSError:
    print("refused")
