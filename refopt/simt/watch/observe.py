"""`observe`: counts what kernels do and, on request, watches them for defects."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager

from ..base.arguments import flag, shown, whole
from ..base.errors import LaunchError
from ..base.places import here
from ..base.state import current, one_at_a_time
from ..memory.arrays import DeviceArray
from ..rules import Rules
from .log import Log
from .orders import chosen


@contextmanager
def observe(
    count: bool | Sequence[DeviceArray] = True,
    watch: bool = False,
    schedule: str | None = None,
    seed: int = 0,
    strict: str | Iterable[str] = (),
    lenient: str | Iterable[str] = (),
    doubles: str = "ignore",
    profile: bool = False,
    floats: bool = False,
    compile: bool = False,
    orders: int = 0,
    keep_going: bool = False,
) -> Iterator[Log]:
    """Observe the launches in a with block: count launches and bytes, watch for defects, set the schedule.

    ``count`` may be a list of arrays: then only their bytes are counted, and accesses to others cost nothing extra.
    ``strict`` and ``lenient`` name rules to turn on or off, relative to the default: `refopt.simt.rules`.
    ``doubles="report"`` lists in ``log.doubles`` the lines on which a kernel without fp64 arrays computes in fp64, as a
    Python constant makes it do; ``"refuse"`` raises a `LaunchError` instead of launching such a kernel.
    With ``profile``, ``log.profile`` has sectors of global memory, bank conflicts of shared memory and divergence, by
    line; with ``floats``, ``log.floats`` has where NaN, infinities, overflow and subnormal numbers arise.
    With ``compile``, numba-cuda compiles each kernel to PTX for the types of its launch, which needs no GPU; if it
    refuses, that is a `CompileError` with its reason. ``log.compiled`` has the outcome by kernel name; where numba-cuda
    is not installed, it says that the kernel was not compiled.

    A watched launch runs forward and, where another order of its threads can expose more, again in reverse. Each run
    starts from the same memory, and the results of the first are kept. ``orders`` adds that many random orders, with
    seeds from ``seed`` on; a ``schedule`` (forward, reverse or random) replaces the first two. With ``keep_going`` a
    defect does not end the block: ``log.defects`` lists each once, by its lines. A defect that a launch cannot continue
    after, such as a barrier that some threads miss, ends that launch. ``log.tolerated`` lists where unordered threads
    wrote equal values. All Python threads are observed. The block begins and ends between launches, never during one.
    """
    counted = count if isinstance(count, list | tuple) else flag("count", count)
    if doubles not in ("ignore", "report", "refuse"):
        raise ValueError(f"observe: doubles: expected ignore, report or refuse, got {shown(doubles)}")
    more = flag("profile", profile), flag("floats", floats)
    watching, going_on = flag("watch", watch), flag("keep_going", keep_going)
    if (orders or going_on) and not watching:
        raise ValueError("observe: orders and keep_going need watch=True")
    held = Rules(strict, lenient), doubles, flag("compile", compile)
    schedules = chosen(schedule, seed, watching, whole("orders", orders))
    log = Log(counted, watching, schedules, *held, going_on, *more)
    with one_at_a_time:
        if current.inside:
            raise LaunchError("observe cannot be entered inside a kernel", here())
        before = current.observer
        if before is not None and not before.gives_way:
            raise RuntimeError("observe blocks do not nest, and only one thread at a time can have one")
        current.observer = log
    try:
        yield log
    finally:
        with one_at_a_time:
            current.observer = before
