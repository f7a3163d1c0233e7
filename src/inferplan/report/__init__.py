"""Results as text, tables and files. Knows no equation."""
