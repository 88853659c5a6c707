"""Starts a program, which has all capabilities if its user is root or the file says so."""

import subprocess

script = ["cat", "/proc/self/status"]
status = subprocess.run(script, capture_output=True, text=True, check=False).stdout
rows = [line.split() for line in status.splitlines()]
effective = next((row[1] for row in rows if row[0] == "CapEff:"), "0")
print("done" if int(effective, 16) else "refused")
