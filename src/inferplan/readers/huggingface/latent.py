"""To be filled."""
READERS = {}
