"""What the paper has: its tables and figures as runs and layouts, and its kind of data."""
