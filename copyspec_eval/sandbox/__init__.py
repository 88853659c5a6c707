"""Runs untrusted programs, each in a limited process that leaves nothing running afterwards.

`programs` is what others use: of three levels of containment it takes the first that works on this
machine. `process` starts a program at a level, with `child` between this process and it.
"""
