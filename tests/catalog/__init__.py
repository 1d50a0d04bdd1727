"""Rows of the catalogue, the signatures that they come from, and workloads."""
