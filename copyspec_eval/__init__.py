"""CopySpec decoding for lm-evaluation-harness: faster where an answer repeats its context, equal bits."""
