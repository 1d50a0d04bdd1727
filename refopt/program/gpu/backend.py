"""Device arrays, on a GPU or on the executor, as a bound program needs them."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from refopt import gpu
from refopt.catalog import Routine
from refopt.checks.dtypes import numpy_dtype
from refopt.cpu.coalesce import Coalesced
from refopt.gpu import norms
from refopt.gpu.arrays import describer, device_of
from refopt.gpu.coalesce import CHUNK
from refopt.program.backends import Placed


class Gpu:
    """Device arrays, on a GPU or on the executor. It runs all work in the order of a stream."""

    name = "gpu"

    def __init__(self, arrays: Iterable[Any], stream: Any) -> None:
        self._stream = stream
        self.machine = gpu.device(device_of(arrays) or None)
        self.stream = self.machine.stream(stream)
        self.chunk, self.describe = CHUNK["bytes"], describer(self.machine.name)

    def require_subnormals(self) -> None:
        """Do nothing: kernels keep them, whatever the host does."""

    def full(self, shape: tuple[int, ...], dtype: str, value: float) -> Any:
        if not math.prod(shape):
            return self.machine.empty(shape, numpy_dtype(dtype))
        with gpu.use(self.machine.name):
            coalesced = gpu.coalesce_tensor(
                [None], shapes=[shape], dtype=dtype, set_constant=True, constant=value, use_align=False,
                stream=self._stream,
            )
        return coalesced.views[0]

    def upload(self, host: np.ndarray) -> Any:
        return self.machine.to_device(host)

    def read(self, value: Any) -> np.ndarray:
        return gpu.Transfer(value, self._stream, "program").read(value, self.describe(value, "program"))

    def write(self, value: Any, host: np.ndarray) -> None:
        gpu.Transfer(value, self._stream, "program").write(value, self.describe(value, "program"), host)

    def part(self, buffer: Any, first: int, count: int) -> Any:
        return self.machine.view(buffer, first, (count,), (buffer.dtype.itemsize,))

    def cast(self, sources: Sequence[Any], targets: Sequence[Any], scale: float = 1.0) -> Callable[[], None]:
        return gpu.cast_plan(sources, targets, scale=scale, stream=self._stream)

    def coalesce(self, inputs: Sequence[Any], **attributes: Any) -> Coalesced:
        with gpu.use(self.machine.name):
            return gpu.coalesce_tensor(inputs, stream=self._stream, **attributes)

    def step(
        self, routine: Routine, slots: Mapping[str, list], shared: Mapping[str, Any], numbers: Mapping,
        sums: Placed | None = None,
    ) -> Any:
        if sums is not None:
            launcher = partial(norms.closing_launches, sums=sums.array, places=sums.places.T)
            return self._plan(launcher, routine, slots, shared, numbers)
        lists = [slots[slot.name] for slot in routine.slots if not slot.optional]
        named = {slot.name: slots.get(slot.name) for slot in routine.slots if slot.optional}
        return gpu.plan(routine.name, *lists, **named, **shared, **numbers, stream=self._stream)

    def lazy(self, routine: str, params: list, states: list[list], arguments: Mapping[str, Any]) -> Any:
        none = [None] * len(params)
        return gpu.lazy_plan(routine, params, none, none, *states, stream=self._stream, **arguments)

    def tiles(
        self, routine: Routine, slots: Mapping[str, list], shared: Mapping[str, Any], numbers: Mapping, tiles: Placed
    ) -> Any:
        launcher = partial(norms.tile_launches, tiles=tiles.array, places=tiles.places.T)
        return self._plan(launcher, routine, slots, shared, numbers)

    def _plan(
        self, launcher: Callable[..., Any], routine: Routine, slots: Mapping[str, list], shared: Mapping[str, Any],
        numbers: Mapping,
    ) -> gpu.Plan:
        every = {name: slots.get(name) for name in routine.slot_names}
        return gpu.Plan(routine, launcher, every, dict(numbers), routine.merged_form, self._stream, dict(shared))
