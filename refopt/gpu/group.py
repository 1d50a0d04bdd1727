"""The tensors of a plan that one kernel updates: their tables and numbers on the device."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from refopt.catalog import Routine
from refopt.checks import Array
from refopt.checks.arguments import rounded
from refopt.checks.dtypes import ACCESSES, SIZES, arithmetic
from refopt.gpu import tables
from refopt.gpu.address_table import AddressTable
from refopt.gpu.runtime import Device

RUNS = 8  # runs of equal neighbouring numbers; if there are more, all are copied instead of filled one by one


class Group:
    """The tensors of one dtype signature, with their tables on the device."""

    def __init__(
        self, machine: Device, routine: Routine, dtypes: tuple, members: list[int],
        arrays: dict[str, list[Array | None]], shared: dict[str, Array],
    ) -> None:
        self.machine, self.routine, self.dtypes, self.members = machine, routine, dtypes, members
        columns = [[arrays[name][i] for i in members] for name in routine.slot_names]
        self.real = arithmetic(dtypes[0])
        self.sizes = [param.size for param in columns[0] if param]
        places = np.array([[a.address if a else 0 for a in column] for column in columns], np.int64)
        self.table = AddressTable(machine, places, _units_of_access(routine, columns))
        self.addresses, self.aligned = self.table.array, self.table.aligned
        self._places, self._row = np.array(members, np.intp), {name: k for k, name in enumerate(routine.slot_names)}
        pair = SIZES[dtypes[0]] + SIZES[dtypes[1]]  # bytes of an element of parameter and gradient
        chunk = tables.chunk_bytes(machine.properties)
        self.chunk_tiles = 1 if routine.elementwise else tables.tiles_per_chunk(pair, chunk)
        host = tables.build(self.sizes, self.aligned, self.chunk_tiles, bool(routine.scalars))
        self.slots, self.chunk_count = host.slots, len(host.chunks)
        self._tensor_of_chunk = host.chunks[:, tables.TENSOR]
        self.chunks = machine.to_device(host.chunks)
        self.nodes = machine.to_device(host.nodes)
        self.counters = machine.to_device(np.zeros(len(host.nodes), np.uint32))
        self.hypers = HyperBlock(machine, routine, self.real, members)
        self.gate = tuple(shared[name].address if name in shared else 0 for name in ("grad_factor", "found_inf"))
        self.factor_dtype = shared["grad_factor"].dtype if "grad_factor" in shared else "float32"

    def chunks_of_tensors(self) -> list[tuple[int, int]]:
        """First chunk and number of chunks of each tensor; chunks of a tensor are consecutive."""
        firsts = np.flatnonzero(np.diff(self._tensor_of_chunk, prepend=-1))
        return list(zip(firsts.tolist(), np.diff(firsts, append=self.chunk_count).tolist(), strict=True))

    def rows_of(self, moved: Mapping[str, np.ndarray]) -> dict[int, np.ndarray]:
        """By row of the table, the group's addresses, picked from those of all tensors in some slots."""
        return {self._row[slot]: addresses[self._places] for slot, addresses in moved.items()}

    def zeros(self, *shape: int) -> Any:
        """Scratch on the device, in the arithmetic type."""
        return self.machine.to_device(np.zeros(shape, self.real))


def _units_of_access(routine: Routine, columns: list[list[Array | None]]) -> np.ndarray:
    """By slot and tensor, the bytes that a thread accesses at a time: four elements, but at most 16 bytes."""
    rows = zip(routine.slots, columns, strict=True)
    units = [[ACCESSES[a.dtype] if a and slot.like_param else 1 for a in row] for slot, row in rows]
    return np.array(units, np.int64)


class HyperBlock:
    """The hyperparameters of a group, on the device, where every replay of a graph reads their current values.

    ``values`` (H, P) has one number per hyperparameter and tensor.
    """

    def __init__(self, machine: Device, routine: Routine, real: type, members: list[int]) -> None:
        self._machine, self._members, self._count = machine, np.array(members, np.intp), len(members)
        self.values = machine.to_device(np.zeros((len(routine.hypers), self._count), real))
        self._upload = machine.uploader(self.values)
        count = self._count
        self._first = {hyper.name: k * count for k, hyper in enumerate(routine.hypers)}
        self._fill = {name: machine.filler(self.values, first, count) for name, first in self._first.items()}
        # The current values by name: one number for all tensors, or an array.
        self._held: dict[str, Any] = {name: 0.0 for name in self._first}

    def set(self, name: str, value: float | list[float], stream: Any) -> None:
        """Upload a hyperparameter, in stream order: one number, or a list with one per tensor of the model."""
        if isinstance(value, list):
            self._set_each(name, rounded(value, self.values.dtype)[self._members], stream)
        else:
            self._fill[name](value, stream)
            self._held[name] = value

    def _set_each(self, name: str, values: np.ndarray, stream: Any) -> None:
        """Upload the range from the first to the last changed value, by runs of equal ones, or all at once."""
        held = self._held[name]
        changed = (values != (held if isinstance(held, np.ndarray) else rounded(held, values.dtype))).nonzero()[0]
        self._held[name] = values
        if not changed.size:
            return
        first, stop = int(changed[0]), int(changed[-1]) + 1
        ends = [*((values[first + 1 : stop] != values[first : stop - 1]).nonzero()[0] + 1 + first).tolist(), stop]
        if len(ends) > RUNS:
            self._upload(self._first[name] + first, values[first:stop], stream)
            return
        for end in ends:
            self._machine.filler(self.values, self._first[name] + first, end - first)(float(values[first]), stream)
            first = end
