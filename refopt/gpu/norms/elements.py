"""What a warp does with a row of elements in each of the two launches, from an optimizer's `NormRule`."""

from collections.abc import Callable, Sequence
from typing import Any

from refopt.catalog import Routine
from refopt.gpu import vectors
from refopt.gpu.rows import either
from refopt.gpu.rules import NormRule
from refopt.gpu.slots import Slots
from refopt.gpu.target import device_function
from refopt.gpu.tiles import ROW, ROWS, add_squares, lane_tree, lane_tree_2, rows_of
from refopt.gpu.unroll import named, tuple_of


@device_function
def all_rows(first, stop):
    return ROWS


def tile_sums(name: str, row: Callable[[bool], Callable], count: int, real: Any) -> Callable:
    """``tile(at, first, stop, aligned, common)``: a warp's sums of squares over a tile, of one or two values per
    element.

    ``row(partial)`` makes ``row(at, first, stop, common)``, the values of a thread's eight elements of a row; listings
    call it ``name``. Every thread of the warp has a single sum; of two, even threads have the first and odd ones the
    second.
    """
    zeros: Any = (real(0),) * 8

    def variant(partial: bool) -> Callable:
        values = named(row(partial), name, "partial" if partial else "full")
        rows = rows_of if partial else all_rows

        @device_function
        def lanes_of_one(at, first, stop, common):
            sums = zeros
            for n in range(rows(first, stop)):
                sums = add_squares(sums, values(at, first + ROW * n, stop, common)[0])
            return (sums,)

        @device_function
        def lanes_of_two(at, first, stop, common):
            sums, others = zeros, zeros
            for n in range(rows(first, stop)):
                x, y = values(at, first + ROW * n, stop, common)
                sums, others = add_squares(sums, x), add_squares(others, y)
            return sums, others

        return lanes_of_two if count == 2 else lanes_of_one

    lanes, tree = either(f"lanes_of_{name}", variant, ROW * ROWS), lane_tree_2 if count == 2 else lane_tree

    @device_function
    def tile_of(at, first, stop, aligned, common):
        return tree(*lanes(at, first, stop, aligned, common))

    return named(tile_of, "tile_of", name)


def norm_row(routine: Routine, dtypes: tuple, rule: NormRule, count: int) -> Callable[[bool], Callable]:
    """The variants of the first launch's ``row(at, first, stop, common)``: new states, and the values to square.

    Its loads ask the cache to keep what the update reads again, unless it also writes states, too much for the cache.
    For LARS, the variant for a complete row::

        def row(at, first, stop, common):
            i = own(first)
            stored_params = load_stored_params(at[0], i, stop)
            grads = load_grads(at[1], i, stop)
            grads = scale8(common[5], grads)
            x, y = transposed((
                normed(stored_params[0], grads[0], common),
                ...
            ))
            return (kept(x, first, stop), kept(y, first, stop))
    """

    states = [name for name in rule.reads if name in routine.states]
    values = ["x", "y"][:count]

    def variant(partial: bool) -> Callable:
        slots = Slots(routine, dtypes, partial, "" if rule.moments else "keep")
        lines = _loads(slots, rule.reads, routine)
        if rule.moments:
            lines += [*slots.apply("moments", rule.moments, rule.reads, states), *map(slots.store, states)]
            for name in states:  # as the second launch reads them
                slots.scope[f"rounded_{name}"] = vectors.rounded8(dtypes[slots.rows[name]])
                lines.append(f"{name} = rounded_{name}({name})")
        slots.scope["kept"] = vectors.kept8(slots.real, partial)
        lines += slots.apply("normed", rule.normed, rule.reads, values)
        return slots.row([*lines, f"return {tuple_of([f'kept({x}, first, stop)' for x in values])}"])

    return variant


def update_row(routine: Routine, dtypes: tuple, rule: NormRule) -> Callable[[bool], Callable]:
    """The variants of the second launch's ``row(at, first, stop, common)``, which returns the exact new parameters.

    For LARS::

        def row(at, first, stop, common):
            i = own(first)
            params = load_params(at[0], at[3], i, stop)
            grads = load_grads(at[1], i, stop)
            velocities = load_velocities(at[2], i, stop)
            grads = scale8(common[5], grads)
            params, velocities = transposed((
                rule(params[0], grads[0], velocities[0], common),
                ...
            ))
            store_velocities(at[2], i, stop, velocities)
            store_params(at[0], at[3], i, stop, params, params)
            return params
    """
    moved = rule.reads if rule.moments else ()
    results = ["params", *(name for name in routine.states if name not in moved)]

    def variant(partial: bool) -> Callable:
        slots = Slots(routine, dtypes, partial)
        lines = [*_loads(slots, rule.updates, routine), *slots.apply("rule", rule.rule, rule.updates, results)]
        return slots.row([*lines, *map(slots.store, reversed(results)), "return params"])

    return variant


def _loads(slots: Slots, names: Sequence[str], routine: Routine) -> list[str]:
    """Load slots; gradients are rescaled by the last number of h, which is the start of ``common``."""
    rescaled = [f"grads = scale8(common[{len(routine.hypers) - 1}], grads)"] if "grads" in names else []
    return [*map(slots.load, names), *rescaled]
