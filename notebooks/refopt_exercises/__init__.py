"""Exercises that check themselves: a specification in NumPy, a kernel to fill in, and the executor as the judge.

`Exercise` has the specification and its cases; `check` holds an answer to them and says what is wrong, and where;
`compare` looks at the numbers alone, as a test without the executor would; `picture` draws what the threads touch.
"""

from .exercise import Exercise
from .verdict import Verdict

__all__ = ["Exercise", "Verdict"]
