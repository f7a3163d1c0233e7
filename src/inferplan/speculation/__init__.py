"""Speculative decoding: what drafts cost, how many of their tokens are kept, what that gains. Knows no screen and no FLOP of its own."""
