"""Runs untrusted programs, each in a limited process that leaves nothing running afterwards.

`programs` is what others use. Of three levels of containment `choice` takes the first that works
on this machine; `process` starts a program at a level, with `child` between this process and it.
"""
