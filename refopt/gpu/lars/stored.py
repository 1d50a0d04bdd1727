"""New parameters as the next step's norm reads them: exact, or rounded as they are stored."""

from collections.abc import Callable

import numpy as np

from refopt.cpu.remainder import split_numbers
from refopt.gpu import vectors
from refopt.gpu.target import device_function, intrinsic
from refopt.gpu.unroll import named

_AWAY = (
    "mov.b32 d, ${x}; add.u32 d, d, 0x8000; and.b32 d, d, 0xffff0000; setp.nan.f32 q, ${x}, ${x}; "
    "selp.b32 d, 0x7fc00000, d, q; mov.b32 ${k}, d; "
)


@intrinsic(
    "{ .reg .b32 d; .reg .pred q; " + "".join(_AWAY.format(k=k, x=k + 4) for k in range(4)) + "}",
    "=f,=f,=f,=f,f,f,f,f", "ffff", "ffff", lanes=True,
)
def round4_away(x):
    """Four values rounded to bf16, ties away from zero: the stored parameters beside remainders (numerics, N15)."""
    return tuple(split_numbers(np.array(x, np.float32))[0].astype(np.float32))  # of many threads, four rows


def stored8(dtypes: tuple, normed: str) -> Callable:
    """Eight exact values as the next step's norm reads them, as "params" or "stored_params"."""
    if normed == "params" and dtypes[-1]:  # without a master, the exact parameter is the stored one
        return named(device_function(lambda x: x), "stored8")
    if dtypes[-1] != "uint16":
        return vectors.rounded8(dtypes[0])

    @device_function
    def rounded8_away(x):
        return round4_away(x[:4]) + round4_away(x[4:])

    return rounded8_away
