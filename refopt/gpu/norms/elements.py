"""What a warp does with a row of elements in each of the two launches, from an optimizer's `NormRule`.

A row comes in two variants. The full one takes all 256 elements to be there and aligned, and loads four at a time. The
partial one is for the end of a tensor, and for arrays that begin at an odd address; it looks at each element by itself.
"""

from collections.abc import Callable, Sequence
from typing import Any

from refopt.catalog import Routine
from refopt.dtypes import arithmetic
from refopt.gpu import unroll, vectors
from refopt.gpu.rules import NormRule
from refopt.gpu.target import cuda, device_function
from refopt.gpu.tiles import ROW, ROWS, add_squares, lane_tree, lane_tree_2, rows_of, scale8


@device_function
def own(first):
    """This thread's first element of a row: thread t of a warp, its lane, has 4t.. and 128 + 4t.., four of each.

    So the loads of a warp's lanes lie side by side and make whole lines of memory: they are coalesced.
    """
    return first + 4 * (cuda.threadIdx.x % 32)


def either(variant: Callable[[bool], Callable], length: int) -> Callable:
    """``part(at, first, stop, aligned, k)``: the full variant of so many elements at ``first``, or the partial one.

    ``variant(partial)`` makes them, as ``part(at, first, stop, k)``. All threads of a warp go the same way, so none
    waits while others go another.
    """
    full, partial = variant(False), variant(True)

    @device_function
    def part(at, first, stop, aligned, k):
        if aligned and first + length <= stop:
            return full(at, first, stop, k)
        return partial(at, first, stop, k)

    return part


def tile_sums(row: Callable[[bool], Callable], count: int, real: Any) -> Callable:
    """``tile(at, first, stop, aligned, k)``: the sums of squares of a tile by a warp, of one or two values an element.

    ``row(partial)`` makes ``row(at, first, stop, k)``, the values of a thread's eight elements of a row. One sum is in
    every thread of the warp; of two, the first is in even threads and the second in odd ones.
    """
    zeros: Any = (real(0),) * 8

    def variant(partial: bool) -> Callable:
        values = row(partial)
        rows = rows_of if partial else device_function(lambda first, stop: ROWS)

        @device_function
        def tile_of_one(at, first, stop, k):
            sums = zeros
            for n in range(rows(first, stop)):
                sums = add_squares(sums, values(at, first + ROW * n, stop, k)[0])
            return lane_tree(sums)

        @device_function
        def tile_of_two(at, first, stop, k):
            sums, others = zeros, zeros
            for n in range(rows(first, stop)):
                x, y = values(at, first + ROW * n, stop, k)
                sums, others = add_squares(sums, x), add_squares(others, y)
            return lane_tree_2(sums, others)

        return tile_of_two if count == 2 else tile_of_one

    return either(variant, ROW * ROWS)


class Slots:
    """How a thread loads and stores its eight elements of a row of each slot: lines of code, and what they call.

    ``at`` in the lines is a tuple of the addresses of a tensor's arrays, in the order of the routine's slots.
    """

    def __init__(self, routine: Routine, dtypes: tuple, partial: bool, policy: str = "") -> None:
        self.rows = {name: row for row, name in enumerate(routine.slot_names)}
        self.dtypes, self.partial, self.policy = dtypes, partial, policy
        self.real: Any = arithmetic(dtypes[0])
        self.rescale = len(routine.hypers) - 1
        self.scope: dict[str, Any] = {"own": own, "scale8": scale8}

    def load(self, name: str) -> str:
        """Load a slot into a variable of its name; gradients are rescaled."""
        if name == "params":
            self.scope["load_params"] = self._exact().load
            return f"params = load_params(at[0], at[{len(self.dtypes) - 1}], i, stop)"
        row, policy = self.rows[name.removeprefix("stored_")], self.policy
        if name == "stored_params" and self.dtypes[-1] not in (None, "uint16"):
            policy = policy and "pass"  # which the update writes, and does not read
        self.scope[f"load_{name}"] = vectors.access(self.dtypes[row], self.real, self.partial, policy).load
        load = f"load_{name}(at[{row}], i, stop)"
        return f"grads = scale8(k[{self.rescale}], {load})" if name == "grads" else f"{name} = {load}"

    def store(self, name: str) -> str:
        """Store a slot from the variable of its name."""
        if name == "params":
            self.scope["store_params"] = self._exact().store
            return f"store_params(at[0], at[{len(self.dtypes) - 1}], i, stop, params, params)"
        row = self.rows[name]
        self.scope[f"store_{name}"] = vectors.access(self.dtypes[row], self.real, self.partial).store
        return f"store_{name}(at[{row}], i, stop, {name})"

    def _exact(self) -> vectors.Access:
        return vectors.exact_access(self.dtypes[0], self.dtypes[-1], self.real, self.partial, self.policy)


def norm_row(routine: Routine, dtypes: tuple, rule: NormRule, count: int) -> Callable[[bool], Callable]:
    """The variants of the first launch's ``row(at, first, stop, k)``: states move on, and the values to be squared.

    The cache is asked to keep what the update reads again, unless states are written too, which is more than it holds.
    """

    def variant(partial: bool) -> Callable:
        slots = Slots(routine, dtypes, partial, "" if rule.moments else "keep")
        elements, states = ", ".join(rule.reads), [name for name in rule.reads if name in routine.states]
        lines = ["i = own(first)"]
        lines += [slots.load(name) for name in rule.reads]
        if rule.moments:
            slots.scope["moments"] = eight(rule.moments, len(rule.reads), len(states))
            lines += [f"{_tuple(states)} = moments({elements}, k)", *map(slots.store, states)]
            for name in states:  # as they are read again
                slots.scope[f"rounded_{name}"] = vectors.rounded8(dtypes[slots.rows[name]])
                lines.append(f"{name} = rounded_{name}({name})")
        slots.scope |= {"normed": eight(rule.normed, len(rule.reads), count)}
        slots.scope |= {"kept": vectors.kept8(slots.real, partial)}
        values = ["x", "y"][:count]
        lines += [f"{_tuple(values)} = normed({elements}, k)"]
        lines += [f"return {_tuple([f'kept({x}, i, stop)' for x in values])}"]
        return unroll.written("row", "at, first, stop, k", lines, **slots.scope)

    return variant


def update_row(routine: Routine, dtypes: tuple, rule: NormRule) -> Callable[[bool], Callable]:
    """The variants of the second launch's ``row(at, first, stop, k)``, which gives the exact new parameters."""
    moved = rule.reads if rule.moments else ()
    written = ["params", *(name for name in routine.states if name not in moved)]

    def variant(partial: bool) -> Callable:
        slots = Slots(routine, dtypes, partial)
        slots.scope["rule"] = eight(rule.rule, len(rule.updates), len(written))
        lines = ["i = own(first)"]
        lines += [slots.load(name) for name in rule.updates]
        lines += [f"{_tuple(written)} = rule({', '.join(rule.updates)}, k)"]
        lines += [slots.store(name) for name in reversed(written)]
        return unroll.written("update", "at, first, stop, k", [*lines, "return params"], **slots.scope)

    return variant


def eight(rule: Callable, arrays: int, results: int) -> Callable:
    """A rule of an element of so many arrays and of k, for eight elements: a tuple of eight for each of its results."""
    names = [f"x{n}" for n in range(arrays)]
    lines = [f"y{e} = rule({', '.join(f'{name}[{e}]' for name in names)}, k)" for e in range(8)]
    columns = [_tuple([f"y{e}[{n}]" for e in range(8)]) for n in range(results)]
    return unroll.written("eight", ", ".join([*names, "k"]), [*lines, f"return {_tuple(columns)}"], rule=rule)


def _tuple(parts: Sequence[str]) -> str:
    return f"({', '.join(parts)}{',' if len(parts) == 1 else ''})"
