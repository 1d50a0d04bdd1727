"""The results that a formula prescribes for a case, within a bound; those of small tensors are cached."""

import collections
from collections.abc import Mapping
from typing import Any

from refopt.catalog import Routine
from refopt.checks.dtypes import arithmetic
from refopt.oracle import cases
from refopt.oracle.bound import sums
from refopt.oracle.bound.evaluate import rounded_off
from refopt.oracle.bound.expected import Expected, unchanged
from refopt.oracle.exact.cases import Case

CACHED = 2**14  # the most bytes of a tensor's arrays whose expected results are cached, for other trials as well
MOST = 1024  # the most cached results
_known: collections.OrderedDict[Any, dict[str, Expected]] = collections.OrderedDict()


class Formula:
    """The formula of a routine.

    Attributes:
        row: the routine.
        flushes: whether subnormal numbers may count as 0.
        rounded: numbers of its cases that the arithmetic rounds, as given.
    """

    def __init__(self, row: Routine, flushes: bool) -> None:
        self.row, self.flushes = row, flushes
        self.rounded: dict[str, float] = {}

    def expected(
        self, case: Case, i: int, depth: sums.Depth = sums.random_data, leasts: int = 1
    ) -> dict[str, Expected]:
        """The expected results for one tensor of a case of one step."""
        arrays, numbers = case.tensor(i), case.numbers_of(i)
        flag = case.steps[0].get("found_inf")
        if arrays["grads"] is None or (flag is not None and flag[0] != 0):
            return unchanged(self.row, arrays)
        of_tensor = rounded_off(numbers, arithmetic(arrays["params"].dtype.name))
        self.rounded |= {name: float(numbers[name]) for name in of_tensor}
        there = [(name, x) for name, x in arrays.items() if x is not None]
        if sum([x.nbytes for _, x in there]) > CACHED:
            return self.of_arrays(case, i, arrays, depth, leasts)
        bits = [(name, x.dtype, x.shape, x.strides, x.tobytes()) for name, x in there]
        exact = [(name, repr(x)) for name, x in numbers.items()]  # repr distinguishes 0.0 and -0.0
        key = (self.row, *bits, *exact, *case.choices.items(), case.count, depth, leasts, self.flushes)
        if key in _known:
            _known.move_to_end(key)
            return _known[key]
        expected = _known[key] = self.of_arrays(case, i, arrays, depth, leasts)
        if len(_known) > MOST:
            _known.popitem(last=False)
        return expected

    def of_arrays(
        self, case: Case, i: int, arrays: Mapping[str, Any], depth: sums.Depth = sums.random_data, leasts: int = 1
    ) -> dict[str, Expected]:
        """The same with other arrays instead of the tensor's, such as some of its elements; not cached."""
        return cases.expected_at(
            self.row, arrays, case.numbers_of(i), case.choices, case.count, depth=depth, flushes=self.flushes,
            leasts=leasts,
        )
