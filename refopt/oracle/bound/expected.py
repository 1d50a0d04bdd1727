"""What one step of a routine must leave in each slot: a value, and how far from it correct code may be."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from refopt import checks
from refopt.catalog import KNOWN
from refopt.checks import flat
from refopt.checks.arguments import chosen, whole
from refopt.checks.dtypes import arithmetic, numpy_dtype
from refopt.checks.rows import Routine
from refopt.oracle.bound import storage, sums
from refopt.oracle.bound.bounded import Arithmetic, Bounded, roundings_of
from refopt.oracle.bound.double_double import DoubleDouble, high
from refopt.oracle.bound.evaluate import evaluate
from refopt.oracle.variants import row_for, variants_of
from refopt.oracle.variants.variant import STEP_NUMBER

GATE = "grad_factor", "found_inf"


class Expected:
    """What one slot of one tensor must hold. All arrays have the tensor's shape.

    Attributes:
        value: the truth, fp64: the routine's rule in twice the precision of its arithmetic.
        rest: the part of the truth that fp64 cannot hold; 0 except for fp64 routines.
        error: the bound on the error of each element, before it is stored; inf where there is none.
        low, high: the least and the largest number that the slot may hold, in its dtype.
    """

    def __init__(self, bound: Bounded, like: np.ndarray, *near: Callable[..., np.ndarray]) -> None:
        """``near`` round to how it is stored, both ends or each of them; by default to nearest even."""
        two = isinstance(bound.value, DoubleDouble)
        ends = (np.broadcast_to(x, like.size) for x in bound.ends())
        if near or like.dtype != bound.dtype:
            near = near or (storage.stored,)
            ends = (round_(x, like.dtype) for round_, x in zip((near[0], near[-1]), ends, strict=True))
        wide = high(bound.value), bound.value.low if two else 0.0, bound.error
        self.value, self.rest, self.error = (_shaped(x, like, np.dtype(np.float64)) for x in wide)
        self.low, self.high = (_shaped(x, like, like.dtype) for x in ends)

    def __repr__(self) -> str:
        return f"Expected(value={self.value}, error={self.error})"

    def ratio(self, got: Any) -> np.ndarray:
        """The error of each element over its bound: at most 1 for correct code, NaN where there is no bound."""
        number, low, high = (np.asarray(x).astype(np.float64) for x in (got, self.low, self.high))
        with np.errstate(all="ignore"):
            off = (number - self.value) - self.rest
            ends = np.where(off >= 0, high - self.value, self.value - low)
            ratio = abs(off) / np.fmax(self.error, ends)
            alike = (np.isinf(number) & (number == self.value)) | (np.isnan(number) & np.isnan(self.value))
            equal = (off == 0) | alike
            ratio = np.where(equal, 0.0, np.where(np.isnan(ratio), np.inf, ratio))
            inside = equal | ((low <= number) & (number <= high))
            ratio = np.where(inside, np.minimum(ratio, 1.0), np.maximum(ratio, 1 + 2.0**-20))
        return np.where(np.isfinite(self.error), ratio, np.nan)


def _shaped(values: Any, like: np.ndarray, dtype: np.dtype) -> np.ndarray:
    """Flat values in the shape and the memory order of an array."""
    shaped = np.empty_like(like, dtype)
    with np.errstate(over="ignore"):
        flat(shaped)[...] = values  # type: ignore[index]
    return shaped


def _down(x: np.ndarray, dtype: Any) -> np.ndarray:
    """The next bf16 number toward -inf, to which stochastic rounding may round."""
    near = storage.stored(x, numpy_dtype("bfloat16"))
    return np.where(near <= x, near, np.nextafter(near.astype(dtype), dtype.type(-np.inf)).astype(x.dtype))


def _up(x: np.ndarray, dtype: Any) -> np.ndarray:
    return -_down(-x, dtype)


def cut(x: np.ndarray, dtype: np.dtype) -> np.ndarray:
    """The next number of a dtype toward 0."""
    near = storage.stored(x, dtype)
    return np.where(abs(near) > abs(x), np.nextafter(near.astype(dtype), dtype.type(0)).astype(x.dtype), near)


def expect(
    routine: str, *, params: Any, grads: Any, sum_of: str | int = "any", rule: Callable[..., tuple] | None = None,
    **given: Any,
) -> dict[str, list[Expected]]:
    """The expected result of one step: a value for each element, in twice the precision, and a bound on the error.

    The bound is a running error bound of the routine's own rule (numerics, N13): correct code is within it in any order
    of operations and with any fusing, and also if it keeps numbers in double.

    Args:
        routine: a name of `refopt.catalog.KNOWN`.
        params, grads: lists of P arrays, as `refopt.cpu` takes them. A gradient of ``None`` skips its tensor.
        sum_of: the data whose squares are summed, for routines with norms: ``"random"``, in any order within
            ``sums.LAMBDA * sqrt(n)`` roundings; ``"any"``, n roundings; or an integer, the number of additions that
            a term passes through.
        rule: a rule that replaces that of `refopt.cpu`, with its signature.
        given: the other slots, the numbers and choices of the routine and of its variants (docs/oracle.md),
            ``grad_factor`` and ``found_inf``, by name. ``step_number``, where a number of a variant needs it, is P
            arrays of one element, of the arithmetic type: the number of the step to take, 1 for the first.

    Returns:
        For each written slot an `Expected` per tensor. With masters, ``"params"`` covers the rounded values of all
        exact parameters within the bound; with remainders, ``"exact_params"`` has the bound of the exact parameters.

    Raises:
        TypeError, ValueError: naming the argument and the index.

    >>> import numpy as np
    >>> expected = expect("sgd", params=[np.ones(3, np.float32)], grads=[np.full(3, 2, np.float32)], lr=0.25)
    >>> expected["params"][0].value
    array([0.5, 0.5, 0.5])
    >>> bool((expected["params"][0].error < 1e-6).all())
    True
    >>> expected["params"][0].ratio(np.array([0.5, 0.50000006, 0.6], np.float32)).round(2)
    array([0.0000000e+00, 8.0000000e-02, 1.3981016e+05])
    """
    row = row_for(chosen("expect: routine", routine, KNOWN), given)
    depth = _depth(sum_of)
    slots, numbers = _arguments(row, {"params": params, "grads": grads} | given)
    gate = {name: given.get(name) for name in GATE}
    try:
        call = checks.check(row, slots, numbers, checks.host_array, gate)
        if row.matrix_arguments:
            row.matrix_arguments(row, call.arrays, call.hypers)
    except (TypeError, ValueError) as error:
        raise type(error)(str(error).replace(f"{row.merged_name}:", "expect:", 1)) from None
    factor, flag = gate["grad_factor"], gate["found_inf"]
    skipped = flag is not None and flag.reshape(-1)[0] != 0
    expected: dict[str, list[Any]] = {slot.name: [] for slot in row.slots if slot.written}
    expected["exact_params"] = []
    of_gate = {} if factor is None else {"grad_factor": factor.reshape(-1)[0]}
    for i in range(len(call.slots["params"])):
        arrays = {name: call.slots[name][i] for name in row.slot_names}
        if skipped or i not in call.active:
            one = unchanged(row, arrays)
        else:
            hypers = call.hyper_of(i)
            choices = {name: hypers.pop(name) for name in row.choices}
            one = expected_of(row, arrays, hypers | of_gate, choices, depth=depth, rule=rule)
        for name, list_ in expected.items():
            list_.append(one.get(name))
    return {name: list_ for name, list_ in expected.items() if any(x is not None for x in list_)}


def expected_of(
    row: Routine, arrays: Mapping[str, Any], numbers: Mapping[str, float], choices: Mapping[str, Any], *,
    rule: Callable[..., tuple] | None = None, scalars: Mapping[str, Bounded] | None = None, **allowed: Any,
) -> dict[str, Expected]:
    """`expect` of one tensor, by slot; ``scalars`` are those of `evaluate`, ``allowed`` is for `Arithmetic`."""
    real = arithmetic(arrays["params"].dtype.name)
    of = Arithmetic(real, roundings_of(row), regroups=True, inputs=True, **allowed)
    with np.errstate(all="ignore"):
        bounds = evaluate(row, arrays, numbers, choices, of, rule=rule, scalars=scalars)
        return stored(arrays, bounds, choices.get("rounding") == "stochastic")


def stored(arrays: Mapping[str, Any], bounds: Mapping[str, Bounded], stochastic: bool = False) -> dict[str, Expected]:
    """What the slots of one tensor may hold, from the results' bounds."""
    master: Any = arrays.get("master_params")
    expected = {}
    for name, bound in bounds.items():
        by_chance = stochastic and np.ndim(bound.error) > 0 and arrays[name].dtype.name == "bfloat16"
        expected[name] = Expected(bound, arrays[name], *(_down, _up) * by_chance)
    if storage.is_remainder(master):
        bound, kind = bounds["params"], master.dtype
        expected["params"] = Expected(bound, arrays["params"], lambda x, _: storage.split(x, kind)[0])
        joined = lambda x, _: storage.joined(*storage.split(x, kind))  # noqa: E731
        expected["exact_params"] = Expected(bound, np.empty_like(master, np.float32), joined)
    elif master is not None:
        expected["master_params"] = Expected(bounds["params"], master)
    return expected


def unchanged(row: Routine, arrays: Mapping[str, Any]) -> dict[str, Expected]:
    """What a skipped step leaves."""
    arithmetic_ = Arithmetic(arithmetic(arrays["params"].dtype.name))
    real = arithmetic_.real
    written = [slot.name for slot in row.slots if slot.written and arrays.get(slot.name) is not None]
    exact = {name: arithmetic_.exact(flat(arrays[name]).astype(real)) for name in written}  # type: ignore[union-attr]
    return {name: Expected(x, arrays[name]) for name, x in exact.items()}


def _depth(sum_of: Any) -> sums.Depth:
    if sum_of in ("any", "random"):
        return {"any": sums.any_order, "random": sums.random_data}[sum_of]
    return sums.declared(whole("expect: sum_of", sum_of, least=0))


def _arguments(row: Routine, named: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """The slots and the numbers and choices, with their defaults."""
    defaults = row.parted(row.defaults)[0]
    for name in named:
        if name not in (*row.slot_names, *defaults, *GATE):
            raise TypeError(f"expect: {name}: expected an argument of {row.merged_name}, got one that it does not take")
    required = [slot.name for slot in row.slots if not slot.optional] + [x for x in defaults if defaults[x] is None]
    for name in required:
        if name not in named:
            raise TypeError(f"expect: {name}: expected it, got none")
    slots = {name: named.get(name) for name in row.slot_names}
    filled = {name: named.get(name, x) for name, x in defaults.items()}
    of = variants_of(row)
    for name in of.counted if of else ():
        if filled[name] != defaults[name] and slots[STEP_NUMBER.name] is None:
            raise TypeError(f"expect: {STEP_NUMBER.name}: expected arrays of one element, for {name}, got none")
    return slots, filled
