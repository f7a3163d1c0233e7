"""Work to seconds: peaks, bandwidths, what binds. Knows no model."""
