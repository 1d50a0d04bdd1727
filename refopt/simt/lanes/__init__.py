"""Launches by lanes: each statement of a kernel runs once for many threads, on NumPy arrays over them."""

from .run import How, attempt, decide

__all__ = ["How", "attempt", "decide"]
