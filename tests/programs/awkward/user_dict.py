"""Returns a dictionary of a class that wraps dictionaries."""

from collections import UserDict


def words(text):
    return UserDict({word: text.split().count(word) for word in text.split()})
