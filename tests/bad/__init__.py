"""Builders of well-formed and broken files for the reader tests; nothing is stored as a blob."""
