"""Returns a view of a dictionary that nobody can write to, chained with an empty one."""

from collections import ChainMap
from types import MappingProxyType


def words(text):
    counts = {word: text.split().count(word) for word in text.split()}
    return ChainMap(MappingProxyType(counts), {})
