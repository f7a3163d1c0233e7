"""One forward pass: segments of sequences, the operators of a model over them, and what they add up to."""
