"""What an answer is worth: programs run in a sandbox, numbers and texts compared."""
