"""Commands and manifests that start a planned deployment in its engine. Knows no time and no price."""
