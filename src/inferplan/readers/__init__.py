"""Readers of foreign files: what stands in them, typed and checked. They know no Model and compute nothing from one."""
