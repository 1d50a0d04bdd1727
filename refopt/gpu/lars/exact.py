"""What the norm of the parameters is taken of: the stored ones, or the exact ones wherever they are."""

from collections.abc import Callable

import numpy as np

from refopt.cpu.remainder import split_numbers
from refopt.gpu import vectors
from refopt.gpu.lars.rule import M, P, Signature
from refopt.gpu.target import device_function, intrinsic
from refopt.gpu.vectors import POLICIES, SECOND, load4_joined

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
    real, normed = signature.real, signature.normed
    if len(normed) == 2:
        return vectors.exact_access(signature[P], signature[M], real, True).load if partial else _kept_joined()
    policy = "keep" if normed[0] in signature.exact else "pass"
    load_one, of_master = vectors.access(signature[normed[0]], real, partial, policy).load, normed == (M,)

    @device_function
    def load(p, m, first, stop):
        return load_one(m if of_master else p, first, stop)

    return load


def _kept_joined() -> Callable:
    """The load of a full row of parameters with their remainders, both to be kept in the cache."""
    asm, *types = load4_joined.asm  # type: ignore[attr-defined]
    asm = asm.replace("ld.global.", "ld.global.L2::cache_hint.").replace("];", "], policy;")
    asm = f"{{ .reg .b64 policy; mov.b64 policy, {POLICIES['keep']:#x}; {asm} }}"
    load4 = intrinsic(asm, *types)(lambda param, remainder: load4_joined(param, remainder))

    @device_function
    def load(p, m, first, stop):
        p, m = p + 2 * first, m + 2 * first
        return load4(p, m) + load4(p + 2 * SECOND, m + 2 * SECOND)

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
