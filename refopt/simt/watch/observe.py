"""`observe`: what kernels did, counted and, if asked, watched for defects."""

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
    """Observe the launches of a with block: count launches and bytes, watch for defects, set the schedule.

    ``count`` may be a list of the arrays whose bytes are asked for: others are then as fast as without it.
    ``strict`` and ``lenient`` name rules that are to hold, or not to, apart from the default: `refopt.simt.rules`.
    ``doubles="report"`` lists in ``log.doubles`` the lines on which a kernel that has no fp64 array computes in fp64,
    as a constant of Python's makes it do; ``"refuse"`` does not launch such a kernel, and raises a `LaunchError`.
    With ``profile``, ``log.profile`` has sectors of global memory, bank conflicts of shared memory and divergence, by
    line; with ``floats``, ``log.floats`` has where NaN, infinities, overflow and subnormal numbers arise.
    With ``compile``, numba-cuda compiles each kernel to PTX for the types of its launch, which takes no GPU; what it
    refuses is a `CompileError` with its reason. ``log.compiled`` has what came of it, by the kernel's name: where
    numba-cuda is not installed, that it was not compiled.

    Watched, a launch runs forward and, where the order of its threads can show more, in reverse: memory is as before it
    in each, and as the first has left it then. ``orders`` is how many random orders there are to be besides, with seeds
    from ``seed`` on; a ``schedule`` (forward, reverse or random) takes the place of the first two. With ``keep_going``
    a defect does not end the block: ``log.defects`` has each once, by its lines. What cannot be gone past, such as a
    barrier in vain, ends its launch. ``log.tolerated`` has where threads in no order wrote equal values.
    All threads of Python are observed. The block begins and ends between launches, never in one.
    """
    counted = count if isinstance(count, list | tuple) else flag("count", count)
    if doubles not in ("ignore", "report", "refuse"):
        raise ValueError(f"observe: doubles: expected ignore, report or refuse, got {shown(doubles)}")
    more = flag("profile", profile), flag("floats", floats)
    watching, going_on = flag("watch", watch), flag("keep_going", keep_going)
    if (orders or going_on) and not watching:
        raise ValueError("observe: orders and keep_going are for what is watched: watch=True")
    held = Rules(strict, lenient), doubles, flag("compile", compile)
    schedules = chosen(schedule, seed, watching, whole("orders", orders))
    log = Log(counted, watching, schedules, *held, going_on, *more)
    with one_at_a_time:
        if current.inside:
            raise LaunchError("a kernel cannot be observed from within", here())
        before = current.observer
        if before is not None and not before.gives_way:
            raise RuntimeError("observe blocks do not nest, and no two threads have one at once")
        current.observer = log
    try:
        yield log
    finally:
        with one_at_a_time:
            current.observer = before
