"""Gives a file of the machine a second name in its own folder."""

import os

linked = 0
for path in (os.__file__, "/etc/hostname", "/usr/bin/env", "/var/lib/dpkg/status"):
    try:
        os.link(path, "second-name")
        os.remove("second-name")
        linked += 1
    except OSError:
        continue
print("done" if linked else "refused")
