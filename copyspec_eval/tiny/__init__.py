"""The embedded model `copyspec-tiny`: what it learns from, its training, and its weights."""
