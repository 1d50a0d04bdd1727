"""Error reports: the threads that wait at a barrier others never reach, and the array that an index is outside of."""

from __future__ import annotations

import ast
import dis
import itertools
import linecache
import re
import sys
from types import FrameType, TracebackType
from typing import Any

import numpy as np

from .errors import BarrierDivergence, OutOfBounds, Place
from .places import Site, here, is_internal


def divergence(launch: Any) -> BarrierDivergence:
    """The error for threads that wait at a barrier or warp operation that others do not reach."""
    groups: dict[tuple, list[Place]] = {}
    for thread in (thread for block in launch.resident for thread in block.threads):
        if thread.greenlet is not None:
            frame = thread.greenlet.gr_frame or sys._getframe()  # the running greenlet has no gr_frame
            place = Site.of(frame).place(launch.name, thread.block.index, thread.index)
            groups.setdefault(place[1:3], []).append(place)
    waits = "; ".join(
        f"{len(places)} at {filename}:{line}, first thread {places[0].thread} of block {places[0].block}"
        for (filename, line), places in groups.items()
    )
    first = min(groups.values(), key=len)[0]  # the smallest group is most likely the one that went astray
    of_warps = any(warp.pending for block in launch.resident for warp in block.warps)
    return BarrierDivergence(
        f"a {'warp operation' if of_warps else 'barrier'} is not reached by all its threads. "
        f"Threads wait: {waits}{_ended(launch.resident)}",
        first,
    )


def _ended(blocks: list[Any]) -> str:
    """A sentence that says how many threads of the blocks have ended; empty if none has."""
    ended, returned = sum(block.exited for block in blocks), sum(block.returned for block in blocks)
    if not ended:
        return ""
    if ended == 1:
        return f". 1 thread of these blocks has ended already, {'' if returned else 'not '}by a return statement"
    how = {0: "none", ended: "all"}.get(returned, returned)
    return f". {ended} threads of these blocks have ended already, {how} of them by a return statement"


def two_places(launch: Any, lanes: list[Any]) -> BarrierDivergence:
    """The error for lanes that meet in a shuffle, vote or match at two different calls."""
    places = {lane.met: lane.met.place(launch.name, lane.block.index, lane.index) for lane in lanes}
    first, second = list(places.values())[:2]
    return BarrierDivergence(
        f"the lanes of a warp operation meet at two different calls (rule shuffle-sites): one in {first}", second
    )


def place_of(error: BaseException) -> Place:
    """The place in the kernel that raised an exception.

    A stop may interrupt an audit hook, which the interpreter calls at any point. Modules of hooks are marked by
    ``__tracebackhide__``, as for pytest.
    """
    step = _last(error)
    frame = step.tb_frame if step else None
    while frame is not None and frame.f_globals.get("__tracebackhide__"):
        frame = frame.f_back
    return here(frame)


_OUTSIDE = re.compile(r"index -?\d+ is out of bounds for (axis \d+ with )?size \d+|too many indices for array")


def is_outside(error: BaseException) -> bool:
    """Whether NumPy raised this error for an index outside an array.

    All arrays of a kernel are NumPy's, and NumPy's message is recognizable: those of lists, tuples and text differ. An
    exception that the kernel itself raises does not count.
    """
    if not isinstance(error, IndexError) or not _OUTSIDE.match(str(error)):
        return False
    step = _last(error)
    return step is None or step.tb_frame.f_code.co_code[step.tb_lasti] != dis.opmap["RAISE_VARARGS"]


def outside(error: BaseException) -> OutOfBounds:
    """The error for an index that NumPy refused, with the name that the array has in the kernel's source."""
    words, step, step_of_kernel = str(error), error.__traceback__, None
    while step is not None:
        if not is_internal(step.tb_frame.f_code.co_filename):
            step_of_kernel = step
        step = step.tb_next
    name, index = None, re.search(r"index (-?\d+)", words)
    if step_of_kernel is not None:
        name, array = _indexed(step_of_kernel.tb_frame, step_of_kernel.tb_lasti)
        shape = f", shape {array.shape}, {array.dtype}" if isinstance(array, np.ndarray) else ""
        words += f" of {name}{shape}" if name else ""
    return OutOfBounds(words, place_of(error), array=name, index=int(index[1]) if index else None)


def _indexed(frame: FrameType, instruction: int) -> tuple[str | None, Any]:
    """The array that an instruction indexes or passes as first argument: its name in the source, and the array."""
    line, end, start, stop = next(itertools.islice(frame.f_code.co_positions(), instruction // 2, None))
    if line is None or line != end:
        return None, None
    text = linecache.getline(frame.f_code.co_filename, line).encode()[start:stop].decode()
    try:
        node: Any = ast.parse(text.strip()).body[0]
    except (SyntaxError, IndexError):
        return None, None
    node = node.targets[0] if isinstance(node, ast.Assign) else getattr(node, "target", getattr(node, "value", None))
    node = node.value if isinstance(node, ast.Subscript) else node.args[0] if getattr(node, "args", ()) else None
    if node is None:
        return None, None
    known = frame.f_globals | frame.f_locals
    return ast.unparse(node), known.get(node.id) if isinstance(node, ast.Name) else None


def _last(error: BaseException) -> TracebackType | None:
    """The innermost step of a traceback."""
    step = error.__traceback__
    while step is not None and step.tb_next is not None:
        step = step.tb_next
    return step
