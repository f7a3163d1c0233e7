"""Slow and plain versions of what the package does quickly, to check it."""
