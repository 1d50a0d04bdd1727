"""Implementations of the routines that are wrong in one place, for the laws to find."""
