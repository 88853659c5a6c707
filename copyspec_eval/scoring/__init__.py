"""Scores of answers: programs are run in a sandbox, numbers and texts are compared."""
