"""The page a person would rather look at."""
