"""The floor of a time: what it takes to move the bytes at the bandwidth of a copy. A time below it is refused."""

import math
from typing import Any

BELOW = 0.03  # of the floor: what a time may be below it, since the copy is measured, too


def judged(ms: float, moved: int, copy_gb_s: float, held: int | None = None, l2: int = 0) -> dict[str, Any]:
    """The row of a time. It is not ok if no memory is as fast: something was not done, or not waited for.

    What the cache holds spares a read and a write at most.
    """
    floor = moved / copy_gb_s / 1e6
    row: dict[str, Any] = {
        "ms": ms, "bytes": moved, "floor_ms": floor, "ratio_to_floor": ms / floor if moved else math.inf,
        "gb_s": moved / ms / 1e6 if ms else math.inf, "share_of_copy": floor / ms if ms else math.inf,
    }
    least = floor
    if held is not None:
        row["cached"] = {"bytes": min(held, l2), "l2_bytes": l2}
        least = max(0, moved - 2 * min(held, l2)) / copy_gb_s / 1e6
    row["ok"] = ms >= (1 - BELOW) * least
    if not row["ok"]:
        row["refused"] = f"{100 * (1 - ms / least):.1f} % below the floor of its bytes, no cache declared that has them"
    return row
