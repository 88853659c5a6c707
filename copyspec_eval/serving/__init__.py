"""Our drafters in other engines."""
