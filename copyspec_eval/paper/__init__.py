"""The paper's tables and figures, as runs and layouts, and its kind of data."""
