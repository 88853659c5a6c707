"""Returns a set of sets, which have to be frozen."""


def parts(text):
    return {frozenset(word) for word in text.split()}
