"""Is an optimizer right, and if not, what is wrong?

>>> from refopt import oracle
>>> def momentum(params, grads, velocities, *, lr, mu):
...     for p, g, v in zip(params, grads, velocities):
...         v[...] = mu * v + g
...         p -= lr * v
>>> report = oracle.check("momentum", momentum, dtypes=["float32", "float64"], laws=["L1"])
>>> report.ok
True

`check` checks an optimizer against the laws (docs/oracle.md), or without a routine against those that need no formula,
and returns a `Report`. `expect` gives the expected result of one step, with a bound for each element. `compare`
compares two implementations. `identify` says which routine an optimizer is;
`vectors` makes test vectors for other languages; `parametrize` turns the laws into tests of pytest. `LAWS` has the laws
by id; `DTYPES`, `ARRAYS`, `SYMMETRIES` and `FEW_BITS` are values that `check` accepts, `DEADLINE` the seconds that a
call of the step may take. `refopt.oracle.exact` has the laws of equal bits, `refopt.oracle.exact.cases` their cases,
`refopt.oracle.ulp` distances in units in the last place. Importing this needs only NumPy.
"""

from typing import Any

from refopt.oracle.bound.expected import Expected, expect
from refopt.oracle.checking import DEADLINE, DTYPES, check
from refopt.oracle.comparison import PARTS, compare
from refopt.oracle.identity import Identity, identify
from refopt.oracle.laws import FEW_BITS, LAWS, SYMMETRIES
from refopt.oracle.portable import Vectors, vectors
from refopt.oracle.report import Report
from refopt.oracle.subjects.arrays import NAMES as ARRAYS

__all__ = [
    "ARRAYS", "DEADLINE", "DTYPES", "FEW_BITS", "LAWS", "PARTS", "SYMMETRIES", "Expected", "Identity", "Report",
    "Vectors", "check", "compare", "expect", "identify", "parametrize", "vectors",
]


def __getattr__(name: str) -> Any:
    if name == "parametrize":  # which needs pytest
        from refopt.oracle.pytest import parametrize

        return parametrize
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
