"""Tests solutions to HumanEval's problems: `solution` runs one, `verdict` judges what it returns.

These two are processes of their own, each in a sandbox, joined by a socket. What runs a solution
knows neither the tests nor the right answers; what judges it never runs it.
"""
