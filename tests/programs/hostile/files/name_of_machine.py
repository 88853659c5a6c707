"""Reads by what names the machine is known."""

from pathlib import Path

files = ("/etc/hostname", "/etc/machine-id", "/etc/hosts", "/sys/class/dmi/id/product_uuid")
read = 0
for file in files:
    try:
        read += len(Path(file).read_bytes()) > 0
    except OSError:
        continue
print("done" if read else "refused")
