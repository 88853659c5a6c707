"""CopySpec decoding for lm-evaluation-harness: faster answers, the same bits."""
