"""A loaded model and what both ways to it share: lm-eval's `--model copyspec`, and Python."""
