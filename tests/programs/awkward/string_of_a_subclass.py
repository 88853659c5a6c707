"""Returns a dict with keys of a class of its own."""


class Word(str):
    def __str__(self):
        return "a word"


def words(text):
    return {Word(word): text.split().count(word) for word in text.split()}
