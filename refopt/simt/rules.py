"""What is reported: each rule has a name, and some ask for more than the hardware does.

The rules that are on by default pass every kernel that is right on a GPU of compute capability 7.0 or later. Those that
are off are good style, or needed by older hardware; `observe(strict=...)` turns them on. `observe(lenient=...)` turns
off what a kernel knowingly does otherwise.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from .base.arguments import shown

ON = {
    "acquire": "what a thread learns from a lock or a flag (`atomic.cas`, `atomic.exch`, an atomic that changes "
    "nothing) is ordered before its later accesses by a fence or a barrier only",
    "host-access": "the host leaves a pinned array alone, and pinned, until the stream of a copy from or to it is "
    "synchronised",
    "int32-overflow": "an int32 holds the sums, differences and products that are stored in it, and what is made an "
    "int32 and stored in an int64",
    "shared-types": "what is written to dynamic shared memory by an array of one type is not overwritten by one of "
    "another, and then read; unsigned words stand for any bits",
    "shuffle-lanes": "the value of a lane that a shuffle's mask does not name, or that has exited, is neither stored "
    "nor voted on, and is no index",
    "shuffle-sites": "the lanes of a shuffle, a vote or a match meet in one call, not in two branches",
    "skipped-barrier": "a thread does not run past a barrier of its block or grid, or a warp operation whose mask "
    "names it, that others wait at, and end there",
    "uninitialized": "shared, local and global memory is written before it is read, and a variable before it is stored",
    "unwritten-copy": "the host copies nothing from a device array of which nobody has written a byte",
    "warp-order": "shuffles, votes and matches order no memory; `syncwarp` does",
    "zero-division": "no integer is divided by zero, which gives 0 in Numba and is undefined on a GPU",
}
OFF = {
    "both-fences": "who does an atomic fences before and after it: what others have fenced before a barrier does not "
    "count, and a ticket, as in the pattern of the last block, needs the second fence as well",
    "early-return": "no thread returns before a barrier of its block or grid, or a warp operation whose mask names it; "
    "from compute capability 7.0 on it may",
    "negative-index": "no index, and no bound of a slice, is negative; Numba counts it from the end",
    "partly-written-copy": "the host copies nothing from a device array of which a byte was not written",
    "same-value": "threads that are not ordered do not write one value to one place; only one of them does",
}


class Rules:
    """The rules that hold: an attribute each, with underscores for hyphens."""

    def __init__(self, strict: Any = (), lenient: Any = ()) -> None:
        on = (set(ON) | _names("strict", strict)) - _names("lenient", lenient)
        vars(self).update({name.replace("-", "_"): name in on for name in ON | OFF})

    if TYPE_CHECKING:

        def __getattr__(self, name: str) -> bool: ...


def _names(what: str, value: Any) -> set[str]:
    names = [value] if isinstance(value, str) else value
    if not isinstance(names, Iterable):
        raise TypeError(f"{what}: expected names of rules, got {shown(value)}")
    names = list(names)
    for name in names:
        if not isinstance(name, str) or name not in ON | OFF:
            raise ValueError(f"{what}: expected some of {', '.join(sorted(ON | OFF))}, got {shown(name)}")
    return set(names)


DEFAULT = Rules()
