"""What must lie in memory: weights, caches, and whether they fit."""
