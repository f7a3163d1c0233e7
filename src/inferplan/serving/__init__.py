"""Serving: requests that arrive, wait, share steps and leave. Knows step times, and no FLOP, part or model."""
