"""The step that all routines share: check the call, then apply the rule to each tensor, in place.

A rule is a pure function of one tensor::

    rule(p, g, *states, *scalars, **numbers) -> p, *states, *scalars

p and the states are flat arrays, scalars and numbers are NumPy scalars, all of the arithmetic type; g is the
rescaled gradient. An optional state that is not given is ``None``. The operators determine every rounding. A rule that
is not elementwise also gets ``stored(name, x)``: x as read back from a slot, and for ``"params"`` the stored parameter
before the step, which may differ from the master.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from types import FunctionType
from typing import Any

import numpy as np

from refopt import checks
from refopt.checks.dtypes import REMAINDERS, arithmetic, name_of
from refopt.checks.rows import Routine
from refopt.cpu.codes import HALF, chances, codes_of
from refopt.cpu.reduce import tile_sums
from refopt.cpu.remainder import join, split
from refopt.cpu.stochastic import dither, random16


def step(row: Routine, arguments: dict[str, Any]) -> None:
    """The whole body of a merged function: apply the routine's rule to its arguments."""
    slots = {name: arguments[name] for name in row.slot_names}
    shared = {name: arguments[name] for name in ("grad_factor", "found_inf")}
    numbers, own = row.parted({name: x for name, x in arguments.items() if name not in slots | shared})
    merged(row, row.rule, slots, numbers, **shared, own=own)


def merged(
    row: Routine, rule: Callable[..., tuple], slots: dict[str, Any], numbers: dict[str, Any], grad_factor: Any = None,
    found_inf: Any = None, own: Mapping[str, Any] = {},
) -> None:
    """Apply a rule to every tensor that has a gradient; raises before anything is modified."""
    checks.require_subnormals()
    shared = {"grad_factor": grad_factor, "found_inf": found_inf}
    run(tensors(rule, checks.check(row, slots, numbers, checks.host_array, shared), own), **shared)


def tensors(rule: Callable[..., tuple], call: checks.Call, own: Mapping[str, Any] = {}) -> list[Tensor]:
    """The tensors of a checked call that have a gradient, each with its rule, for repeated steps."""
    rules = [rule] * len(call.slots["params"])
    if call.routine.matrix_arguments:
        each = call.routine.matrix_arguments(call.routine, call.arrays, call.hypers, **own)
        rules = [partial(rule, **arguments) for arguments in each]
    return [Tensor(rules[i], call, i) for i in call.active]


def run(
    every: list[Tensor], *, grad_factor: Any = None, found_inf: Any = None,
    squares: Sequence[np.ndarray] | None = None,
) -> None:
    """Apply the rule to the current contents of tensors, as a merged function does.

    Of tensors that are parts of others, ``squares`` has the sums of squares of the whole, which `tiles` begins.
    """
    factor = _factor(grad_factor, found_inf)
    with np.errstate(all="ignore"):
        for k, tensor in enumerate(every if factor is not None else ()):
            tensor.step(factor, None if squares is None else squares[k])


def tiles(every: list[Tensor], *, grad_factor: Any = None, found_inf: Any = None) -> list[list[np.ndarray]]:
    """For each tensor and norm that its rule takes, the sums of squares of its tiles; nothing if a step is skipped."""
    factor = _factor(grad_factor, found_inf)
    with np.errstate(all="ignore"):
        return [tensor.tiles(factor) for tensor in (every if factor is not None else ())]


def _factor(grad_factor: Any, found_inf: Any) -> Any:
    """The factor of the gradients; ``None`` if the step is skipped."""
    if found_inf is not None and found_inf.reshape(-1)[0] != 0:
        return None
    return 1 if grad_factor is None else grad_factor.reshape(-1)[0]


class Tensor:
    """A tensor of a checked call: its arrays, flat, and its numbers in the arithmetic type."""

    def __init__(self, rule: Callable[..., tuple], call: checks.Call, i: int) -> None:
        row = call.routine
        self.row, self.rule, self.carried = row, rule, row.carried
        self.scalars, self.checked = frozenset(row.scalars), False
        self.arrays: dict[str, Any] = {name: checks.flat(call.slots[name][i]) for name in row.slot_names}
        states = [slot for slot in row.slots if slot.name in row.states and self.arrays[slot.name] is not None]
        self.codes = {slot.name: codes_of(slot) for slot in states if self.arrays[slot.name].dtype == np.uint8}
        self.real = arithmetic(name_of(self.arrays["params"].dtype))
        self.set(call.hyper_of(i))

    def set(self, hypers: dict[str, Any]) -> None:
        """Set new numbers, and the choices."""
        row, real = self.row, self.real
        with np.errstate(all="ignore"):
            numbers = {name: real(x) if name not in row.choices else x for name, x in hypers.items()}
        self.rescale, self.seed = numbers.pop("rescale_grad"), int(numbers.pop("seed", 0))
        rounded = ("params", *row.states) if numbers.pop("rounding", "nearest") == "stochastic" else ()
        self.chance = {name: k for k, name in enumerate(rounded)}
        self.numbers = numbers if row.elementwise else numbers | {"stored": self._stored}

    def tiles(self, factor: Any) -> list[np.ndarray]:
        """For each norm that the rule takes, the sums of squares of the tiles."""
        found: list[np.ndarray] = []

        def squares(values: np.ndarray) -> Any:
            found.append(tile_sums(values * values))
            return self.real(0)

        self._results(factor, _with_squares(self.rule, squares))
        return found

    def step(self, factor: Any, squares: np.ndarray | None = None) -> None:
        """Apply the rule, and store its results."""
        arrays, given = self.arrays, None if squares is None else iter(squares)
        param, master = arrays["params"], arrays["master_params"]
        results = self._results(factor, self.rule if given is None else _with_squares(self.rule, lambda _: next(given)))
        if not self.checked:  # a rule always returns the same form
            _check_results(self.row, self.carried, arrays, results)
            self.checked = True
        for name, state in zip(self.carried, results[1:], strict=True):
            if arrays[name] is not None:
                self._store(name, np.asarray(state))
        _store_param(param, master, results[0], self.seed, self.chance.get("params"))

    def _results(self, factor: Any, rule: Callable[..., tuple]) -> tuple:
        arrays, param, real = self.arrays, self.arrays["params"], self.real
        g = self.rescale * real(factor) * arrays["grads"].astype(real)
        states = [self._value(name, param.size) for name in self.carried]
        return rule(exact(param, arrays["master_params"], real), g, *states, **self.numbers)

    def _value(self, name: str, size: int) -> Any:
        array = self.arrays[name]
        if array is None:
            return None
        if name in self.scalars:
            return array.reshape(-1)[0]
        return self.codes[name].decode(array, size) if name in self.codes else array.astype(self.real)

    def _store(self, name: str, state: np.ndarray) -> None:
        array, chance = self.arrays[name], self.chance.get(name)
        if name not in self.codes:
            store(array, state, self.seed, chance)
            return
        self.codes[name].encode(array, state, HALF if chance is None else chances(state.size, self.seed, chance))

    def _stored(self, name: str, x: np.ndarray) -> np.ndarray:
        array = self.arrays[name]
        return (array if name == "params" else x.astype(array.dtype)).astype(self.real)


def _with_squares(rule: Callable[..., tuple], squares: Callable[[np.ndarray], Any]) -> Callable[..., tuple]:
    """A rule with another function in place of `refopt.cpu.reduce.sum_of_squares`."""
    function: Any = rule
    return FunctionType(function.__code__, function.__globals__ | {"sum_of_squares": squares})


def _store_param(
    param: np.ndarray, master: np.ndarray | None, exact: np.ndarray, seed: int, chance: int | None
) -> None:
    if master is not None and master.dtype.name in REMAINDERS:
        param[...], master[...] = split(exact, master.dtype.name)
        return
    store(param, exact, seed, chance)
    if master is not None:
        master[...] = exact


def _check_results(row: Routine, carried: tuple[str, ...], arrays: dict[str, Any], results: tuple) -> None:
    """Refuse a rule's results unless they have a value for the parameter and each given state and scalar."""
    missing = [name for name, state in zip(("params", *carried), results, strict=False)
               if state is None and arrays[name] is not None]
    if len(results) != 1 + len(carried) or missing:
        expected = f"{1 + len(carried)} values, the new parameter and {', '.join(carried) or 'no more'}"
        got = f"None for {', '.join(missing)}" if missing else len(results)
        raise TypeError(f"{row.merged_name}: rule: expected {expected}, got {got}")


def exact(param: np.ndarray, master: np.ndarray | None, real: type) -> np.ndarray:
    """The parameter to compute with: its master, itself with its remainder, or itself."""
    if master is None:
        return param.astype(real)
    return join(param, master) if master.dtype.name in REMAINDERS else master.astype(real)


def store(array: np.ndarray, values: np.ndarray, seed: int, chance: int | None) -> None:
    """Round values to what an array holds: to nearest, or to bf16 by ``chance``, the number of the array (N16)."""
    if chance is not None and array.dtype.name == "bfloat16":
        values = dither(values, random16(values.size, seed, chance))
    array[...] = values.astype(array.dtype)
