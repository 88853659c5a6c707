"""Returns a Counter where a dict is wanted."""

from collections import Counter


def words(text):
    return Counter(text.split())
