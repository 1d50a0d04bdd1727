"""What the norm of the parameters is taken of: the stored ones, or the exact ones wherever they are."""

from collections.abc import Callable

import numpy as np

from refopt.cpu.remainder import split_numbers
from refopt.gpu import vectors
from refopt.gpu.lars.rule import M, P, Signature
from refopt.gpu.target import device_function, intrinsic

_AWAY = (
    "mov.b32 d, ${x}; add.u32 d, d, 0x8000; and.b32 d, d, 0xffff0000; setp.nan.f32 q, ${x}, ${x}; "
    "selp.b32 d, 0x7fc00000, d, q; mov.b32 ${k}, d; "
)


@intrinsic(
    "{ .reg .b32 d; .reg .pred q; " + "".join(_AWAY.format(k=k, x=k + 4) for k in range(4)) + "}",
    "=f,=f,=f,=f,f,f,f,f", "ffff", "ffff",
)  # fmt: skip
def round4_away(x):
    """Four values rounded to bf16, ties away from zero: the parameters that remainders leave (numerics, N15)."""
    return tuple(split_numbers(np.array(x, np.float32))[0].astype(np.float32))


def first_load(signature: Signature, partial: bool) -> Callable:
    """The load of eight elements of what is normed, from parameter and master: ``load(p, m, first, stop)``.

    The cache is asked to keep what the update reads again, which is all but a parameter that has a master.
    """
    real = signature.real
    if signature.normed == signature.exact:
        return vectors.exact_access(signature[P], signature[M], real, partial, "keep").load
    load_stored = vectors.access(signature[P], real, partial, "keep" if P in signature.exact else "pass").load

    @device_function
    def load(p, m, first, stop):
        return load_stored(p, first, stop)

    return load


def stored8(signature: Signature) -> Callable:
    """Eight exact values as the next step's norm finds them."""
    if signature.normed != (P,):
        return device_function(lambda x: x)
    if signature[M] != "uint16":
        return vectors.rounded8(signature[P])

    @device_function
    def rounded(x):
        return round4_away(x[:4]) + round4_away(x[4:])

    return rounded
