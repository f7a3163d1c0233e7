"""Foreign files read: configurations and checkpoints to a Model, results of benchmarks to case rows. Knows no part and no clock."""
