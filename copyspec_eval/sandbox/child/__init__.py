"""The process between the sandbox and a program: it contains the program, and ends all of it.

Standard library only and imported as a package of its own, not through `copyspec_eval`: it starts
in milliseconds for every program.
"""
