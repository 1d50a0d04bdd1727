"""Is an optimizer right, and if not, what is wrong?

>>> from refopt import oracle
>>> def momentum(params, grads, velocities, *, lr, mu):
...     for p, g, v in zip(params, grads, velocities):
...         v[...] = mu * v + g
...         p -= lr * v
>>> report = oracle.check("momentum", momentum, dtypes=["float32", "float64"], laws=["L1"])
>>> report.ok
True

`check` holds a step to the laws (docs/oracle.md) and returns a `Report`; `expect` says what one step has to come to,
with a bound for each element; `parametrize` makes tests of pytest of the laws. `LAWS` are the laws by their ids,
`RELATIONS` those that need no formula, of `check(None, step)`, and `SYMMETRIES` what a step may declare for them;
`DTYPES` and `ARRAYS` are what `check` can be told of both. `refopt.oracle.exact` has the laws of equal bits,
`refopt.oracle.exact.cases` what they compare, `refopt.oracle.ulp` distances in units in the last place. Importing
this needs NumPy alone.
"""

from typing import Any

from refopt.oracle.bound.expected import Expected, expect
from refopt.oracle.checking import DTYPES, check
from refopt.oracle.laws import LAWS
from refopt.oracle.relations import RELATIONS, SYMMETRIES
from refopt.oracle.report import Report
from refopt.oracle.subjects.arrays import NAMES as ARRAYS

__all__ = [
    "ARRAYS", "DTYPES", "LAWS", "RELATIONS", "SYMMETRIES", "Expected", "Report", "check", "expect", "parametrize",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    if name == "parametrize":  # which needs pytest
        from refopt.oracle.pytest import parametrize

        return parametrize
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
