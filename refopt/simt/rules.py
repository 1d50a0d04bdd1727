"""The rules whose violations are reported, each with a name; some require more than the hardware does.

The rules that are on by default pass every kernel that is correct on a GPU of compute capability 7.0 or later. The
others are good style, or needed on older hardware; `observe(strict=...)` turns them on. `observe(lenient=...)` turns
off rules that a kernel breaks on purpose.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from .base.arguments import shown

ON = {
    "acquire": "after reading a lock or a flag (`atomic.cas`, `atomic.exch`, an atomic that changes nothing), a thread "
    "needs a fence or a barrier to order its later accesses",
    "float-range": "a float that is converted to an integer is not NaN, and its integer part fits in that type; else "
    "the result is undefined on a GPU",
    "host-access": "the host does not access or unpin a pinned array until the stream of a copy from or to it is "
    "synchronized",
    "int32-overflow": "sums, differences and products that are stored in an int32 fit in it, and so do values that are "
    "converted to int32 and stored in an int64",
    "shared-types": "dynamic shared memory that an array of one type has written is not overwritten through another "
    "type and then read as the first; unsigned words may hold any bits",
    "shuffle-lanes": "the value of a lane that a shuffle's mask does not name, or that has exited, is not stored, "
    "voted on or used as an index",
    "shuffle-sites": "the lanes of a shuffle, a vote or a match meet in one call, not in two branches",
    "skipped-barrier": "a thread does not skip a barrier of its block or grid, or a warp operation whose mask names "
    "it, and end while others wait there",
    "uninitialized": "shared, local and global memory is written before it is read, and a variable is assigned before "
    "it is stored",
    "unwritten-copy": "the host does not copy from a device array of which no byte was written",
    "warp-order": "shuffles, votes and matches do not order memory; `syncwarp` does",
    "zero-division": "no integer is divided by zero, which gives 0 in Numba and is undefined on a GPU",
}
OFF = {
    "both-fences": "the thread that executes an atomic fences before and after it: fences by others before a barrier "
    "do not count, and a ticket, as in the last-block pattern, needs the second fence too",
    "early-return": "no thread returns before a barrier of its block or grid, or a warp operation whose mask names it; "
    "from compute capability 7.0 on it may",
    "negative-index": "no index and no slice bound is negative; Numba counts those from the end",
    "partly-written-copy": "the host does not copy from a device array of which any byte was not written",
    "same-value": "unordered threads do not write the same value to the same place",
    "signed-overflow": "sums, differences and products of signed integers fit in 64 bits, and absolute values in their "
    "type, except on lines with bitwise operators: a GPU's compiler assumes no overflow",
}


class Rules:
    """The rules that are on: an attribute each, with underscores for hyphens."""

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
