"""Sums of squares of eight values in a tuple, for kernels that are still assembled."""

from collections.abc import Callable
from typing import Any

from refopt.gpu import tiles
from refopt.gpu.target import cuda, device_function
from refopt.gpu.unroll import gather

scale8 = gather("scale8", "factor * x[{k}]", "factor, x", 8)


def tile_sums(name: str, row: Callable[[bool], Callable], count: int, real: Any) -> Callable:
    full, partial = row(False), row(True)

    @device_function
    def add_row(at, i, stop, whole, k, s):
        first = i - 4 * (cuda.threadIdx.x % 32)
        x = full(at, first, stop, k)[0] if whole else partial(at, first, stop, k)[0]
        for e in range(8):
            s[0, e] = s[0, e] + x[e] * x[e]

    return tiles.tile_sums(add_row, 1, real)
