"""Is an optimizer right, and if not, what is wrong?

>>> from refopt import oracle
>>> def momentum(params, grads, velocities, *, lr, mu):
...     for p, g, v in zip(params, grads, velocities):
...         v[...] = mu * v + g
...         p -= lr * v
>>> report = oracle.check("momentum", momentum, dtypes=["float32", "float64"], laws=["L1"])
>>> report.ok
True

`check` holds an optimizer to the laws (docs/oracle.md), without a routine to those that need no formula, and returns a
`Report`; `expect` says what one step has to come to, with a bound for each element; `compare` holds two implementations
to each other, and `record` keeps one for later; `identify` says which routine an optimizer is; `vectors` are test
vectors for other languages; `parametrize` makes tests of pytest of the laws. `LAWS` are the laws by their ids, and
`current_id` says what one is called that had another; `DTYPES`, `ARRAYS` and `SYMMETRIES` what `check` can be told of,
`DEADLINE` the seconds that a call of the step may take. `refopt.oracle.exact` has the laws of equal bits,
`refopt.oracle.exact.cases` what they compare, `refopt.oracle.ulp` distances in units in the last place. Importing this
needs NumPy alone.
"""

from typing import Any

from refopt.oracle.bound.expected import Expected, expect
from refopt.oracle.checking import DEADLINE, DTYPES, check
from refopt.oracle.comparison import PARTS, compare, record
from refopt.oracle.identity import Identity, identify
from refopt.oracle.laws import LAWS, SYMMETRIES, current_id
from refopt.oracle.portable import Vectors, vectors
from refopt.oracle.report import Report
from refopt.oracle.subjects.arrays import NAMES as ARRAYS

__all__ = [
    "ARRAYS", "DEADLINE", "DTYPES", "LAWS", "PARTS", "SYMMETRIES", "Expected", "Identity", "Report",
    "Vectors", "check", "compare", "current_id", "expect", "identify", "parametrize", "record", "vectors",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    if name == "parametrize":  # which needs pytest
        from refopt.oracle.pytest import parametrize

        return parametrize
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
