"""Lazy steps: a sparse gradient updates the rows of embedding tables that it names, and no others.

A sparse gradient of a table (rows, ...) is int64 ``indices`` (n,), which may repeat, and ``values`` (n, ...). A dense
step would read every row, decay it, and decay its moments. A lazy step adds the values of each row that occurs, in the
order in which they occur, starting from the first, and in the arithmetic type; then it makes the routine's step of
these rows as if they were the whole table. All other rows of parameters and states keep every bit.

Scalars, such as the powers of beta, count steps. With ``count="global"`` they are those of the routine: one for each
table, which advance whenever the table has a gradient, even one without rows (Paddle's ``lazy_mode``, PyTorch's
``SparseAdam``). With ``"row"`` a table has one for each row, (rows,), which advance with the row.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from refopt import checks
from refopt.checks.arguments import chosen, listed
from refopt.checks.arrays import check_c_order, refuse_overlaps
from refopt.checks.dtypes import arithmetic, arithmetic_name, widens
from refopt.checks.rows import Routine
from refopt.cpu.adagrad import ADAGRAD
from refopt.cpu.adam import ADAM
from refopt.cpu.adamw import ADAMW
from refopt.cpu.merged import merged
from refopt.cpu.momentum import MOMENTUM
from refopt.cpu.routine import SHARED
from refopt.cpu.sgd import SGD

Array = checks.Array
LAZY = {row.name: row for row in (ADAGRAD, ADAM, ADAMW, MOMENTUM, SGD)}
COUNTS = "global", "row"


def merged_lazy(
    routine: str, params: Sequence[Any], indices: Sequence[Any], values: Sequence[Any], *states: Sequence[Any],
    count: str = "global", **arguments: Any,
) -> None:
    """Update the rows of tables that sparse gradients name, in place.

    Args:
        routine: ``"adagrad"``, ``"adam"``, ``"adamw"``, ``"momentum"`` or ``"sgd"``.
        params: P tables, C-contiguous arrays of shape (rows, ...).
        indices: for each table int64 (n,), or ``None`` to leave the table out. Rows may repeat; n may be 0.
        values: for each table (n, ...), of any dtype that the arithmetic type represents.
        states: the routine's states and scalars, in its order; a state has the shape of its table.
        count: what scalars count, ``"global"`` or ``"row"``.
        arguments: the routine's others by name, without ``rounding`` and ``seed``; states have no 8-bit form.

    Raises:
        TypeError, ValueError: the message names routine, argument and index; nothing has been modified then.
    """
    row = lazy_row(routine, count)
    slots, hypers, shared = parted(row, params, states, arguments)
    checks.require_subnormals()
    call = check_lazy(row, slots, indices, values, hypers, checks.host_array, shared)
    pieces = []  # each in place of a tensor: a table's rows and their sums, or one row if each has scalars
    for i in call.active:
        check_range(row, i, call.slots["indices"][i], len(call.slots["params"][i]))
        rows, sums = summed(*(call.slots[x][i] for x in ("indices", "grads", "params")))
        if has_scalars_by_row(row):
            pieces += [(i, rows[k : k + 1], sums[k : k + 1]) for k in range(len(rows))]
        else:
            pieces.append((i, rows, sums))
    written = {x.name: not x.scalar for x in row.slots if x.written}  # scalars of tables are passed as they are
    lists = {x: [_at(call.slots[x][i], rows, by_row) for i, rows, _ in pieces] for x, by_row in written.items()}
    numbers = {x: [of[i] for i, *_ in pieces] if isinstance(of, list) else of for x, of in call.hypers.items()}
    merged(LAZY[routine], row.rule, lists | {"grads": [sums for *_, sums in pieces]}, numbers, **shared)
    for x in [x for x, by_row in written.items() if by_row]:
        for (i, rows, _), array in zip(pieces, lists[x], strict=True):
            if array is not None:
                call.slots[x][i][rows] = array


def summed(indices: np.ndarray, values: np.ndarray, param: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The rows that occur in indices, and the sum of the values of each, in the arithmetic type."""
    rows, first, place = np.unique(indices, return_index=True, return_inverse=True)
    exact = values.astype(arithmetic(param.dtype.name))
    sums = exact[first]
    with np.errstate(all="ignore"):
        for k in np.setdiff1d(np.arange(len(indices)), first):
            sums[place[k]] += exact[k]
    return rows, sums


def _at(array: np.ndarray | None, rows: np.ndarray, by_row: bool) -> np.ndarray | None:
    return array[rows] if by_row and array is not None else array


def lazy_row(routine: str, count: str) -> Routine:
    """What the checks need to know of a lazy routine: it has no stochastic rounding, and no states in 8 bits."""
    full = LAZY[chosen("merged_lazy: routine", routine, LAZY)]
    by_row = chosen(f"merged_lazy_{routine}: count", count, COUNTS) == "row"
    slots = [x._replace(scalar=False, by_row=True, initial=None) if x.scalar and by_row else x for x in full.slots]
    choices = {x: values for x, values in full.choices.items() if x != "rounding"}
    return full._replace(
        name=f"lazy_{routine}", slots=tuple(slots), hypers=full.hypers[:-1], elementwise=False, choices=choices)


def has_scalars_by_row(row: Routine) -> bool:
    """Whether each row of a table has scalars of its own."""
    return any(slot.by_row for slot in row.slots)


def parted(
    row: Routine, params: Sequence[Any], states: Sequence[Any], arguments: Mapping[str, Any]
) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
    """The arguments of a call: arrays by slot without gradients, hyperparameters, and the shared arrays."""
    required = [slot.name for slot in row.slots[2:] if not slot.optional]
    if len(states) != len(required):
        expected = f"{len(required)} lists after values ({', '.join(required) or 'none'})"
        raise TypeError(f"{row.merged_name}: expected {expected}, got {len(states)}")
    slots = {"params": params} | dict(zip(required, states, strict=True))
    slots |= {slot.name: arguments.get(slot.name) for slot in row.slots if slot.optional}
    shared = {name: arguments.get(name) for name in SHARED}
    numbers = [*(x.name for x in row.hypers), *row.choices]
    known = [*numbers, *(x.name for x in row.slots if x.optional), *SHARED, "count"]
    for unknown in arguments.keys() - {*known}:
        raise TypeError(f"{row.merged_name}: {unknown}: expected one of {', '.join(known)}")
    return slots, {x: value for x, value in arguments.items() if x in numbers}, shared


def check_lazy(
    row: Routine, slots: dict[str, Any], indices: Any, values: Any, hypers: dict[str, Any],
    describe: Callable[[Any, str], Array], shared: dict[str, Any],
) -> checks.Call:
    """Check all but the range of the indices; raises, or returns the call, with ``indices`` and values as ``grads``."""
    name, tables = row.merged_name, listed(f"{row.merged_name}: params", slots["params"])
    for i, given in enumerate(tables):  # before what is said of states whose order differs
        check_c_order(f"{name}: params[{i}]", describe(given, f"{name}: params[{i}]"))
    call = checks.check(row, slots | {"grads": [None] * len(tables)}, hypers, describe, shared)
    for i, given in enumerate(call.slots["params"]):
        param = describe(given, "")
        if not param.shape:
            raise ValueError(f"{name}: params[{i}]: expected an axis of rows, got shape ()")
        for slot in [slot.name for slot in row.slots if slot.by_row]:
            if (got := describe(call.slots[slot][i], "").shape) != (expected := param.shape[:1]):
                raise ValueError(f"{name}: {slot}[{i}]: expected shape {expected}, one for each row, got {got}")
    return sparse(call, indices, values, describe)


def sparse(call: checks.Call, indices: Any, values: Any, describe: Callable[[Any, str], Array]) -> checks.Call:
    """The call with other sparse gradients, checked."""
    name, tables = call.routine.merged_name, call.arrays["params"]
    found: dict[str, list[Array | None]] = {}
    for x, given in (("indices", indices), ("values", values)):
        each = listed(f"{name}: {x}", given)
        if len(each) != len(tables):
            raise ValueError(f"{name}: {x}: expected {len(tables)} entries, as params has, got {len(each)}")
        found[x] = [None if one is None else describe(one, f"{name}: {x}[{i}]") for i, one in enumerate(each)]
    for i, (rows, sums, param) in enumerate(zip(*found.values(), tables, strict=True)):
        _check_sparse(name, i, rows, sums, param)
    arrays = call.arrays | {"indices": found["indices"], "grads": found["values"]}
    refuse_overlaps(name, (
        (*array.span, x not in ("indices", "grads"), f"{'values' if x == 'grads' else x}[{i}]")
        for x, each in arrays.items() for i, array in enumerate(each) if array and array.size
    ))
    slots = call.slots | {"indices": list(indices), "grads": list(values)}
    return call._replace(slots=slots, arrays=arrays, active=[i for i, x in enumerate(found["indices"]) if x])


def _check_sparse(name: str, i: int, rows: Array | None, values: Array | None, param: Array) -> None:
    """Check the sparse gradient of one table."""
    rows_at, values_at = f"{name}: indices[{i}]", f"{name}: values[{i}]"
    if rows is None or values is None:
        if rows is not values:
            expected, got = ("None", "an array") if rows is None else ("an array", "None")
            raise TypeError(f"{values_at}: expected {expected}, as indices[{i}] is, got {got}")
        return
    if rows.dtype != "int64":
        raise TypeError(f"{rows_at}: expected int64, got {rows.dtype}")
    if len(rows.shape) != 1:
        raise ValueError(f"{rows_at}: expected one axis, got shape {rows.shape}")
    if not widens(values.dtype, arithmetic(param.dtype)):
        expected = f"a dtype that widens to {arithmetic_name(param.dtype)}"
        raise TypeError(f"{values_at}: expected {expected}, got {values.dtype}")
    if values.shape != (shape := rows.shape + param.shape[1:]):
        raise ValueError(f"{values_at}: expected shape {shape}, a row for each index, got {values.shape}")
    check_c_order(rows_at, rows)
    check_c_order(values_at, values)


def check_range(row: Routine, i: int, indices: np.ndarray, rows: int) -> None:
    """Refuse indices, on the host, that are not rows of their table."""
    wrong = (indices < 0) | (indices >= rows)
    if wrong.any():
        k = int(wrong.argmax())
        raise ValueError(f"{row.merged_name}: indices[{i}][{k}]: expected a row from 0 to {rows - 1}, got {indices[k]}")
