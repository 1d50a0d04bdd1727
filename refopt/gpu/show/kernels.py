"""The kernels of a routine for dtypes and choices, and their launches, found without arrays."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from refopt.catalog import KNOWN, Routine, workloads
from refopt.catalog.data import DTYPES, offered, slot_dtype
from refopt.checks import Array
from refopt.checks.arguments import chosen, names
from refopt.checks.arrays import c_strides
from refopt.checks.dtypes import ITEM_SIZES, arithmetic
from refopt.cpu import Blocks
from refopt.cpu.blocks import cuts
from refopt.gpu import family, runtime
from refopt.gpu.group import Group
from refopt.gpu.kernels import Kernel
from refopt.gpu.muon import computed
from refopt.gpu.muon import launches_of as launches_of_muon

WORKLOAD = "resnet50"  # the model for whose tensors launches are counted


class Request(NamedTuple):
    """A routine, the dtype of each slot that is given, a form, and a value of each choice."""

    routine: Routine
    dtypes: Mapping[str, str]
    form: str
    choices: Mapping[str, Any]
    hopper: bool = False


def request(
    routine: str, dtype: str = "fp32", form: str | None = None, states: Iterable[str] = (),
    choices: Mapping[str, Any] | None = None, hopper: bool = False,
) -> Request:
    """A request, checked.

    Args:
        routine: a name of `refopt.catalog.KNOWN`.
        dtype: a dtype configuration of ``refopt verify``.
        form: one of the routine's forms; the default of plans if not given.
        states: the optional states that are given.
        choices: values of the routine's choices; the first of each if not given.
        hopper: the kernels that Hopper has in place of those for every GPU, by which Muon multiplies large matrices.

    Raises:
        ValueError, TypeError: the routine has no such dtypes, form, states or choices.
    """
    row = KNOWN[chosen("show: routine", routine, KNOWN)]
    asked = DTYPES[chosen("show: dtype", dtype, [name for name in DTYPES if offered(row, name)])]
    form = row.merged_form if form is None else chosen("show: form", form, row.forms)
    present = _optional(row, states) | {slot.name for slot in row.slots if not slot.optional}
    present |= {"master_params"} if asked.master or asked.remainder else set()
    every = {name: values[0] for name, values in row.choices.items()}
    every |= {"rounding": "stochastic"} if asked.chance else {}
    kinds = computed(asked.param) if row.matrix_arguments else ()
    every |= {"compute": kinds[0]} if kinds else {}
    for name, value in (choices or {}).items():
        name = chosen("show: choices", name, row.choices)
        every[name] = chosen(f"show: {name}", value, row.choices[name])
    if kinds:
        chosen("show: compute", every["compute"], kinds)
    dtypes = {slot.name: slot_dtype(slot, dtype) for slot in row.slots if slot.name in present}
    return Request(row, dtypes, form, every, hopper)


def _optional(row: Routine, states: Iterable[str]) -> set[str]:
    """The optional states that are given, checked."""
    optional = [slot.name for slot in row.slots if slot.optional and slot.name != "master_params"]
    present = set(names("show: states", states))
    for name in present:
        if not optional:
            raise ValueError(f"show: states: {row.name} has no optional states, got {name}")
        chosen("show: states", name, optional)
    return present


class Launched(NamedTuple):
    """A kernel, its grid and block, the mode of its launch, and its arguments."""

    kernel: Kernel
    grid: int
    block: int
    mode: str
    args: tuple


class Launches(NamedTuple):
    """A plan's launches before its first step, in that step and in every other; and all prepared launches."""

    before: list[Launched]
    first: list[Launched]
    steady: list[Launched]
    prepared: list[Launched]

    @property
    def kernels(self) -> list[Kernel]:
        """Each kernel once."""
        return list(dict.fromkeys(x.kernel for x in self.prepared))


class Recorder(runtime.Executor):
    """The executor, except that it records launches instead of running them."""

    def __init__(self, hopper: bool = False) -> None:
        self.warpgroups = hopper
        self.prepared: list[Launched] = []
        self.made: list[Launched] = []

    def tensor_maps(self, addresses: Sequence[int], sizes: Sequence[tuple[int, int, int]]) -> Any:
        """What a GPU makes of addresses and sizes; kernels are told where it is, and nothing of what it says."""
        return self.empty((len(addresses), 16), np.uint64)

    def prepare(self, kernel: Kernel, grid: int, block: int, args: tuple, mode: str = "") -> Callable[[Any], None]:
        self.prepared.append(launched := Launched(kernel, grid, block, mode, args))
        return lambda stream: self.made.append(launched)


def launches_of(asked: Request, shapes: Sequence[tuple[int, ...]] = ()) -> Launches:
    """The launches of a plan without factor and flag, over tensors of some shapes.

    Without shapes, the tensors are those of `WORKLOAD`.
    """
    routine, dtypes, form, choices, hopper = asked
    if not shapes:
        every = workloads.load(WORKLOAD)
        shapes = [tensor.shape for tensor in (every.matrices() if routine.matrix_arguments else every).tensors]
    machine = Recorder(hopper)
    # Descriptions of arrays for the tables; nothing is at these addresses.
    arrays: dict[str, list[Array | None]] = {
        name: [Array(1 << 20, s, dtypes[name], c_strides(s, ITEM_SIZES[dtypes[name]]), True) for s in shapes]
        if name in dtypes else [None] * len(shapes) for name in routine.slot_names
    }
    signature = tuple(dtypes.get(name) for name in routine.slot_names)
    group = Group(machine, routine, signature, list(range(len(shapes))), arrays, {})
    if routine.matrix_arguments:
        step: Any = _of_matrices(group, [x for x in arrays["params"] if x], choices)
    else:
        step = family.launches_of(routine)(group, form, **choices)

    def made(do: Callable[[Any], None]) -> list[Launched]:
        machine.made = []
        do(None)
        return machine.made

    return Launches(made(step.forget), made(step), made(step), machine.prepared)


def _of_matrices(group: Group, params: list[Array], choices: Mapping[str, Any]) -> Any:
    """The launches of Muon with its default coefficients, for matrices and convolution kernels."""
    blocks = [Blocks(of="convolution" if len(param.shape) > 2 else "matrix") for param in params]
    iterations = next(int(hyper.default or 0) for hyper in group.routine.hypers if hyper.name == "iterations")
    triples = np.array([group.routine.own["coefficients"]] * iterations, arithmetic(choices["compute"]))
    return launches_of_muon(group, cuts(group.routine.merged_name, params, blocks), triples, **choices)[0]
