"""The lines of code that load and store a thread's eight elements of a row of each of an optimizer's arrays.

The optimizer determines the arrays, and their dtypes determine the functions that load and store them. So the body of
an update is assembled from lines. For Adam with fp32 masters, `refopt.gpu.elementwise` assembles::

    def row(at, first, stop, common):
        i = own(first)
        addresses, _, tensor = at
        h, s, factor_at = common
        params = load_params(addresses[0, tensor], addresses[7, tensor], i, stop)
        grads = load_grads(addresses[1, tensor], i, stop)
        moment1 = load_moment1(addresses[2, tensor], i, stop)
        moment2 = load_moment2(addresses[3, tensor], i, stop)
        rescale, k = h[-1] * factor_of(factor_at), prepare(h, s)
        params, moment1, moment2 = transposed((
            rule(params[0], rescale * grads[0], moment1[0], moment2[0], k),
            rule(params[1], rescale * grads[1], moment1[1], moment2[1], k),
            ...
        ))
        exact = params
        store_params(addresses[0, tensor], addresses[7, tensor], i, stop, exact, params)
        store_moment1(addresses[2, tensor], i, stop, moment1)
        store_moment2(addresses[3, tensor], i, stop, moment2)

No load waits for the previous one, so all of them together take the latency of one. `refopt show` prints each kernel
with the functions that it calls.
"""

from collections.abc import Callable, Sequence
from typing import Any

from refopt.catalog import Routine
from refopt.checks.dtypes import arithmetic
from refopt.gpu import vectors
from refopt.gpu.rows import own
from refopt.gpu.target import transposed
from refopt.gpu.tiles import scale8
from refopt.gpu.unroll import written


class Slots:
    """The lines of one body, and in ``scope`` what they call. A slot's elements are in the variable of its name."""

    def __init__(self, routine: Routine, dtypes: tuple, partial: bool, policy: str = "", at: str = "at[{}]") -> None:
        """``at`` formats the address of a slot's array, from its index among the routine's slots."""
        self.rows = {name: row for row, name in enumerate(routine.slot_names)}
        self.dtypes, self.partial, self.policy, self.at = dtypes, partial, policy, at
        self.real: Any = arithmetic(dtypes[0])
        self.scope: dict[str, Any] = {"own": own, "scale8": scale8, "transposed": transposed}

    def load(self, name: str) -> str:
        row, policy = self.rows[name.removeprefix("stored_")], self.policy
        if name == "stored_params" and self.dtypes[-1] not in (None, "uint16"):
            policy = policy and "pass"  # the update writes them, and does not read them
        access = self._exact() if name == "params" else self._access(row, policy)
        self.scope[f"load_{name}"] = access.load
        return f"{name} = load_{name}({self._addresses(name, row)}, i, stop)"

    def store(self, name: str, exact: str = "params") -> str:
        """Store a slot; the exact parameters may be in a different variable from the rounded ones."""
        row = self.rows[name]
        access, values = self._access(row), name
        if name == "params":
            access, values = self._exact(), f"{exact}, params"
        self.scope[f"store_{name}"] = access.store
        return f"store_{name}({self._addresses(name, row)}, i, stop, {values})"

    def apply(
        self, name: str, function: Callable, arrays: Sequence[str], results: Sequence[str], k: str = "common"
    ) -> list[str]:
        """Compute eight elements of each result, with a function of an element of each array and of ``k``."""
        self.scope[name] = function
        calls = [f"    {name}({', '.join(f'{x}[{e}]' for x in arrays)}, {k})," for e in range(8)]
        return [f"{', '.join(results)}{',' * (len(results) == 1)} = transposed((", *calls, "))"]

    def row(self, lines: Sequence[str]) -> Callable:
        """The device function made of the lines, as `refopt.gpu.rows.either` takes it."""
        return written("row", "at, first, stop, common", ["i = own(first)", *lines], **self.scope)

    def _addresses(self, name: str, row: int) -> str:
        """The address of a slot; for exact parameters two, of the parameter and of its master or remainder."""
        rows = (row, len(self.dtypes) - 1) if name == "params" else (row,)
        return ", ".join(map(self.at.format, rows))

    def _access(self, row: int, policy: str = "") -> vectors.Access:
        return vectors.access(self.dtypes[row], self.real, self.partial, policy)

    def _exact(self) -> vectors.Access:
        return vectors.exact_access(self.dtypes[0], self.dtypes[-1], self.real, self.partial, self.policy)
