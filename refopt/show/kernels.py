"""The kernels that a routine runs for given dtypes, and how they are launched, without an array."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from refopt import workloads
from refopt.catalog import Routine
from refopt.checks import Array
from refopt.gpu import family, runtime
from refopt.gpu.plan import Group
from refopt.gpu.target import Kernel

WORKLOAD = "resnet50"  # whose tensors the launches are counted for


class Launched(NamedTuple):
    """A kernel, its grid and block, the mode of its launch, and its arguments."""

    kernel: Kernel
    grid: int
    block: int
    mode: str
    args: tuple


class Launches(NamedTuple):
    """What a plan launches: before its first step, in that step, in every other; and all that it has prepared."""

    before: list[Launched]
    first: list[Launched]
    steady: list[Launched]
    prepared: list[Launched]

    @property
    def kernels(self) -> list[Kernel]:
        """Each kernel once."""
        return list(dict.fromkeys(x.kernel for x in self.prepared))


class Recorder(runtime.Executor):
    """The executor, but for launches, which are noted and not made."""

    def __init__(self) -> None:
        self.prepared: list[Launched] = []
        self.made: list[Launched] = []

    def prepare(self, kernel: Kernel, grid: int, block: int, args: tuple, mode: str = "") -> Callable[[Any], None]:
        self.prepared.append(launched := Launched(kernel, grid, block, mode, args))
        return lambda stream: self.made.append(launched)


def launches_of(
    routine: Routine, dtypes: Mapping[str, str], form: str, choices: Mapping[str, Any], sizes: Sequence[int]
) -> Launches:
    """The launches of a plan that is given neither a factor nor a flag.

    Args:
        routine: a row of the catalogue.
        dtypes: the dtype of each slot that is given.
        form: one of the routine's.
        choices: a value for each of the routine's.
        sizes: the elements of each tensor.
    """
    machine = Recorder()
    arrays = {
        name: [_array(dtypes[name], size) if name in dtypes else None for size in sizes] for name in routine.slot_names
    }
    signature = tuple(dtypes.get(name) for name in routine.slot_names)
    group = Group(machine, routine, signature, list(range(len(sizes))), arrays, {})
    step = family.LAUNCHES.get(routine.name, family.elementwise.launches)(group, form, **choices)

    def made(do: Callable[[Any], None]) -> list[Launched]:
        machine.made = []
        do(None)
        return machine.made

    return Launches(made(step.forget), made(step), made(step), machine.prepared)


def _array(dtype: str, size: int) -> Array:
    """What the tables need to know of an array; there is none at its address."""
    return Array(1 << 20, (size,), dtype, (1,), True)


def sizes_of(workload: str = WORKLOAD) -> list[int]:
    return [tensor.elements for tensor in workloads.load(workload).tensors]
