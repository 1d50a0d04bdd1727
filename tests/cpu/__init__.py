"""The reference beside the routines: sums, and what the caller has told NumPy."""
