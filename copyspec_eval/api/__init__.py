"""Python's way in: answers of any loaded model, and transformers' own door."""
