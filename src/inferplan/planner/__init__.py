"""Capacity planning: sweeps over deployments, what they cost, the cheapest fleet that meets a goal. Knows no FLOP and no screen."""
