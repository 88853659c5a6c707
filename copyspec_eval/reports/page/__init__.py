"""The report as one file for a browser: figures, charts, and every answer with what was copied."""
