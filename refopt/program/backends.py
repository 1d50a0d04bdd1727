"""The machine of a bound program: NumPy arrays and `refopt.cpu`, or device arrays and `refopt.gpu`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from importlib import import_module
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from refopt import checks, cpu
from refopt.catalog import Routine
from refopt.checks import Array
from refopt.checks.arguments import chosen, whole
from refopt.checks.dtypes import numpy_dtype
from refopt.cpu import cast, coalesce
from refopt.cpu.merged import run, tensors, tiles

Run = Callable[[], None]


class Cpu:
    """NumPy arrays. Work is complete when a call returns."""

    name = "cpu"
    chunk = coalesce.CHUNK["bytes"]

    def require_subnormals(self) -> None:
        """Refuse to compute if subnormal numbers are flushed to zero (numerics, N14)."""
        checks.require_subnormals()

    def describe(self, value: Any, where: str) -> Array:
        """The description of an array for checks; raises if it is not an array of this machine."""
        return checks.host_array(value, where)

    def full(self, shape: tuple[int, ...], dtype: str, value: float) -> Any:
        """A new array filled with a value."""
        return np.full(shape, value, numpy_dtype(dtype))

    def upload(self, host: np.ndarray) -> Any:
        """A new array with the contents of a NumPy array."""
        return host.copy()

    def read(self, value: Any) -> np.ndarray:
        """A host copy."""
        return value.copy()

    def write(self, value: Any, host: np.ndarray) -> None:
        """Overwrite an array."""
        value[...] = host

    def part(self, buffer: Any, first: int, count: int) -> Any:
        """Consecutive elements of an array in C order; memory is shared."""
        return buffer.reshape(-1)[first : first + count]

    def cast(self, sources: Sequence[Any], targets: Sequence[Any], scale: float = 1.0) -> Run:
        """`merged_cast` bound to its arrays, which are checked here."""
        return cast.bound(checks.check_cast(sources, targets, scale, checks.host_array), sources, targets, scale)

    def coalesce(self, inputs: Sequence[Any], **attributes: Any) -> coalesce.Coalesced:
        """`coalesce_tensor`."""
        return cpu.coalesce_tensor(inputs, **attributes)

    def step(
        self, routine: Routine, slots: Mapping[str, list], shared: Mapping[str, Any], numbers: Mapping,
        sums: Placed | None = None,
    ) -> CpuStep:
        """A routine bound to its arrays; of parts of tensors, ``sums`` has the sums of squares of the whole."""
        return CpuStep(routine, slots, shared, numbers, sums)

    def lazy(self, routine: str, params: list, states: list[list], arguments: Mapping[str, Any]) -> Any:
        """`merged_lazy` bound to its tables; ``rebind`` takes sparse gradients."""
        return CpuLazy(routine, params, states, arguments)

    def tiles(
        self, routine: Routine, slots: Mapping[str, list], shared: Mapping[str, Any], numbers: Mapping, tiles: Placed
    ) -> CpuTiles:
        """The part of a routine's step that comes before its norms: the sums of tiles."""
        return CpuTiles(routine, slots, shared, numbers, tiles)


class Placed(NamedTuple):
    """An array of sums, and the first place of each tensor's in it, a place for each norm: shape (tensors, norms)."""

    array: Any
    places: np.ndarray


class CpuStep:
    """A routine of `refopt.cpu` and its arrays, which the constructor checks."""

    def __init__(
        self, routine: Routine, slots: Mapping[str, list], shared: Mapping[str, Any], numbers: Mapping[str, Any],
        sums: Placed | None = None,
    ) -> None:
        every = {name: slots.get(name) for name in routine.slot_names}
        self._numbers, self._own = routine.parted(numbers)
        self._call = checks.check(routine, every, self._numbers, checks.host_array, dict(shared))
        self._tensors, self._shared = tensors(routine.rule, self._call, self._own), shared
        self._sums = sums

    def __call__(self) -> None:
        run(self._tensors, **self._shared, squares=self._sums and self._sums.array[self._sums.places])

    def set(self, **numbers: Any) -> None:
        """Change the numbers of later steps."""
        call = self._call
        self._numbers |= numbers
        hypers = checks.check_hypers(call.routine, self._numbers, len(call.slots["params"]), call.reals())
        self._call = call._replace(hypers=hypers)
        for i, tensor in zip(call.active, self._tensors, strict=True):
            tensor.set(self._call.hyper_of(i))

    def refresh(self) -> None:
        """Do nothing: no values are cached between steps."""


class CpuLazy:
    """`merged_lazy` and its tables, which the constructor checks."""

    def __init__(self, routine: str, params: list, states: list[list], arguments: Mapping[str, Any]) -> None:
        self._run, self._states, self._arguments = partial(cpu.merged_lazy, routine, params), states, {**arguments}
        self.rebind([None] * len(params), [None] * len(params))
        self()

    def __call__(self) -> None:
        self._run(*self._sparse, *self._states, **self._arguments)

    def rebind(self, indices: Sequence[Any], values: Sequence[Any]) -> None:
        """As `gpu.LazyPlan.rebind`."""
        self._sparse = indices, values

    def set(self, **numbers: Any) -> None:
        """Change the numbers of later steps."""
        self._arguments |= numbers


class CpuTiles(CpuStep):
    """The sums of tiles from which a step's norms are formed, put to their places."""

    def __call__(self) -> None:
        assert self._sums is not None
        found = tiles(self._tensors, **self._shared)
        for rows, firsts in zip(found, self._sums.places if found else (), strict=True):
            for sums, first in zip(rows, firsts, strict=True):
                self._sums.array[first : first + sums.size] = sums


Backend: TypeAlias = Any  # a `Cpu`, or a `refopt.program.gpu.backend.Gpu`, which has the same methods


def backend_of(name: str, arrays: Mapping[str, Any], stream: Any) -> Backend:
    """The machine that a program runs on, by the argument ``backend`` of `bind`."""
    chosen("bind: backend", name, ("cpu", "gpu"))
    for key, array in arrays.items() if name == "gpu" else ():
        if isinstance(array, np.ndarray):
            raise TypeError(f"bind: arrays: {key!r}: expected a device array, got a NumPy array")
    if name == "gpu":
        # Imported by name, so that programs on a CPU need no device packages.
        return import_module("refopt.program.gpu.backend").Gpu(arrays.values(), stream)
    if stream is not None:
        whole("bind: stream", stream, 0, 0)  # NumPy has no other
    return Cpu()
