"""Runs untrusted programs (`programs`), each contained by a process (`child`) that ends it all."""
