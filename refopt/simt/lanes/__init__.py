"""Launches by lanes: each statement of a kernel is evaluated once for many threads, on NumPy arrays over them."""

from .run import attempt, made
from .typed import Refused

__all__ = ["Refused", "attempt", "made"]
