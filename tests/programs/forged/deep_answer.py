"""Answers with lists in lists without end."""


def words(text):
    deep = []
    for _ in range(200_000):
        deep = [deep]
    return deep
