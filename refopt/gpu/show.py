"""What a GPU runs for a routine: the files of its kernels, how a step launches them, and their PTX.

`source` takes the files from the kernels themselves: every function that a kernel calls is in one of them, and they
are printed as they are. ``refopt show`` is the command.
"""

import dis
import inspect
import textwrap
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import chain, cycle
from pathlib import Path
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
from refopt.cpu.newton_schulz import restarting
from refopt.gpu import family, runtime
from refopt.gpu.cuda import Launch
from refopt.gpu.group import Group
from refopt.gpu.kernels import Kernel
from refopt.gpu.muon import computed
from refopt.gpu.muon import launches_of as launches_of_muon
from refopt.gpu.target import called, held, signature_of

__all__ = ["Launches", "Request", "files", "launches_of", "ptx", "request", "source"]

FOLDER = Path(__file__).parent
WIDTH = 78  # of the lines of a header, without "# "
WORKLOAD = "resnet50"  # the model for whose tensors launches are counted
MODES = {
    "": "", "whole": "", "cooperative": " with a barrier across the grid",
    "overlapping": " whose blocks may start while the previous launch drains",
}
HOW = (
    "Below are the files of these kernels, in the order of the first calls, each under its name and the functions "
    "that are called. The compiler inlines every function into its kernel and rounds a * b + c twice. Where a "
    "function is an intrinsic, the GPU runs its PTX and the executor its body, with the same bits. launch_bounds are "
    "the most threads per block and the blocks that should fit on a multiprocessor at a time; they tell the compiler "
    "how many registers a thread may use."
)
ALONE = (
    " An intrinsic for Hopper only raises an error on the executor. The last of a launch's four numbers is its dynamic "
    "shared memory in bytes."
)


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
        dtype: a name of ``refopt.catalog.data.DTYPES``.
        form: one of the routine's forms; the default of plans if not given.
        states: optional states that are given, such as moment2_max.
        choices: values of the routine's choices, the first of each if not given; and of Muon, ``restarts``.
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
    every |= {"compute": kinds[0], "restarts": None} if kinds else {}
    for name, value in (choices or {}).items():
        name = chosen("show: choices", name, every)
        every[name] = chosen(f"show: {name}", value, row.choices[name]) if name in row.choices else value
    if kinds:
        chosen("show: compute", every["compute"], kinds)
        iterations = int(row.defaults["iterations"])
        every["restarts"] = restarting("show: restarts", every["restarts"], iterations, every["compute"])
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


def source(asked: Request) -> str:
    """What ``refopt show`` prints: a comment on arrays, numbers and launches, then the files of the kernels."""
    launches = launches_of(asked)
    parts = [_header(asked, launches)]
    for path, functions in files(launches.kernels).items():
        lead = f"---- {path.relative_to(FOLDER.parents[1]).as_posix()}"
        own = dict.fromkeys(x.__name__ for x in functions if x.__name__.isidentifier())  # no lambda
        parts.append(_commented(_wrapped(f"{lead}: ", own) or [lead]) + path.read_text())
    return "\n\n".join(parts)


def files(kernels: Iterable[Kernel]) -> dict[Path, list[Callable]]:
    """The files of kernels, with the functions that the kernels call, in the order of the first calls."""
    found: dict[Path, list[Callable]] = {}
    calls = [called(kernel.function, _by_mention) for kernel in kernels]
    for function in dict.fromkeys([*(own[0] for own in calls), *chain(*calls)]):
        path = Path(inspect.unwrap(function).__code__.co_filename)
        if FOLDER in path.parents:
            found.setdefault(path, []).append(function)
    return found


def _by_mention(function: Callable) -> list[Any]:
    """The values that a function holds, in the order in which it first names them."""
    mentioned = [step.argval for step in dis.get_instructions(function)]
    code = function.__code__
    keys = chain(code.co_names, code.co_freevars, cycle(code.co_names))  # as `held` has them; the last of modules
    pairs = zip(keys, held(function), strict=False)
    return [value for _, value in sorted(pairs, key=lambda pair: mentioned.index(pair[0]))]


def ptx(asked: Request) -> str:
    """The PTX of each kernel of a request, once; it needs a compiler, but no GPU."""
    kernels = {x.kernel: x.args for x in launches_of(asked).prepared}
    return "\n".join(f"// {kernel.name}\n{kernel.ptx(signature_of(args))}" for kernel, args in kernels.items())


class Launches(NamedTuple):
    """A plan's launches before its first step, in that step and in every other; and all prepared launches."""

    before: list[Launch]
    first: list[Launch]
    steady: list[Launch]
    prepared: list[Launch]

    @property
    def kernels(self) -> list[Kernel]:
        """Each kernel once."""
        return list(dict.fromkeys(x.kernel for x in self.prepared))


class Recorder(runtime.Executor):
    """The executor, except that it records launches instead of running them."""

    def __init__(self, hopper: bool = False) -> None:
        self.warpgroups = hopper
        self.prepared: list[Launch] = []
        self.made: list[Launch] = []

    def tensor_maps(self, addresses: Sequence[int], sizes: Sequence[tuple[int, int, int]]) -> Any:
        """What a GPU makes of addresses and sizes; kernels are told where it is, and nothing of what it says."""
        return self.empty((len(addresses), 16), np.uint64)

    def prepare(self, kernel: Kernel, grid: int, block: int, args: tuple, mode: str = "") -> Callable[[Any], None]:
        self.prepared.append(launched := Launch(kernel, grid, block, args, mode))
        return lambda stream: self.made.append(launched)


def launches_of(asked: Request, shapes: Sequence[tuple[int, ...]] = ()) -> Launches:
    """The launches of a plan without factor and flag, found without arrays, over tensors of some shapes.

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

    def made(do: Callable[[Any], None]) -> list[Launch]:
        machine.made = []
        do(None)
        return machine.made

    return Launches(made(step.forget), made(step), made(step), machine.prepared)


def _of_matrices(group: Group, params: list[Array], choices: Mapping[str, Any]) -> Any:
    """The launches of Muon with its default coefficients, for matrices and convolution kernels."""
    blocks = [Blocks(of="convolution" if len(param.shape) > 2 else "matrix") for param in params]
    defaults = group.routine.defaults
    triples = np.array([defaults["coefficients"]] * int(defaults["iterations"]), arithmetic(choices["compute"]))
    return launches_of_muon(group, cuts(group.routine.merged_name, params, blocks), triples, **choices)[0]


def _header(asked: Request, launches: Launches) -> str:
    """The comment above the files: what the arrays, numbers and launches of a routine are."""
    routine, dtypes, form, choices, hopper = asked
    lines = [f"refopt.gpu: {routine.merged_name}, form {form}{', on Hopper' * hopper}", ""]
    lines += _wrapped("arrays: ", [f"{name}~{dtype}" for name, dtype in dtypes.items()])
    lines += _wrapped("choices: ", (f"{name}={value}" for name, value in choices.items()))
    lines += _wrapped("rows of addresses: ", [f"{k}~{n}" for k, n in enumerate(routine.slot_names) if n in dtypes])
    lines += _wrapped("rows of hyper: ", [f"{k}~{hyper.name}" for k, hyper in enumerate(routine.hypers)])
    if routine.scalars and routine.elementwise:
        lines += _wrapped("rows of carried: ", [f"{k}~{name}" for k, name in enumerate(routine.scalars)])
    what = "matrices" if routine.matrix_arguments else "tensors"
    lines += ["", f"Launches for the {what} of {WORKLOAD}, as kernel[blocks, threads]:"]
    lines += _wrapped("before the first step: ", _in_words(launches.before))
    if [x.kernel for x in launches.first] != [x.kernel for x in launches.steady]:
        lines += _wrapped("in the first step, and after refresh(): ", _in_words(launches.first))
    lines += _wrapped("in a step: ", _in_words(launches.steady))
    seen = {x.kernel for x in (*launches.before, *launches.first, *launches.steady)}
    others = [x for x in launches.prepared if x.kernel not in seen]
    lines += _wrapped("after a step that a graph replays: ", _in_words(others[:1]))
    return _commented([*lines, "", *_wrapped("", [HOW + ALONE * hopper])])


def _in_words(launches: Sequence[Launch]) -> list[str]:
    """Launches in words, grouped by kernel."""
    parts = []
    for kernel in dict.fromkeys(x.kernel for x in launches):
        own = [x for x in launches if x.kernel is kernel]
        least, most = min(x.grid for x in own), max(x.grid for x in own)
        grid = str(least) if least == most else f"{least} to {most}"
        if own[0].mode == "cooperative":
            grid = "as many as fit at a time"
        shared = f", 0, {kernel.dynamic_shared}" if kernel.dynamic_shared else ""
        times = f"{len(own)} times " if len(own) > 1 else ""
        parts.append(f"{times}{kernel.name}[{grid}, {own[0].block}{shared}]{MODES[own[0].mode]}")
    return parts


def _wrapped(lead: str, parts: Iterable[str]) -> list[str]:
    """Lines that begin with a lead, or none without parts, in which ~ is a space that does not break."""
    text = lead + ", ".join(parts)
    return textwrap.wrap(text, WIDTH, subsequent_indent=" " * len(lead), break_on_hyphens=False) if text != lead else []


def _commented(lines: Iterable[str]) -> str:
    return "".join(f"# {line}".rstrip().replace("~", " ") + "\n" for line in lines)
