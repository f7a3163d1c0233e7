"""Measurements and known values: reading case files, predicting each case, comparing."""
