"""Published configurations to model records. Knows field names and shapes of architectures, no number format and no clock."""
