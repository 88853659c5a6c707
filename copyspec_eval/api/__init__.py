"""The Python API: answers of any loaded model, by our `generate` or by transformers'."""
