"""Loads and stores of a bf16 parameter and its 16-bit remainder, which together are an fp32 (numerics, N15).

On the executor they are ``refopt.cpu.remainder``, for one element of one thread or of many threads.
"""

import numpy as np

from refopt.cpu.remainder import HALF, INFINITY, halves, join, number, split_numbers
from refopt.gpu.patterns import pattern_of
from refopt.gpu.target import intrinsic
from refopt.simt import memory

# Join a parameter's bits and its remainder to the exact pattern, and split it again (numerics, N15).
_JOIN = (
    "and.b32 m, p, 0x7fff; sub.u32 d, p, 1; or.b32 e, p, 0x7f80; setp.le.u32 q, m, 0x7f80; selp.b32 d, d, p, q; "
    "setp.eq.u32 q, m, 0; selp.b32 d, e, d, q; setp.ge.u32 q, r, 0x8000; selp.b32 d, d, p, q; "
    "shl.b32 d, d, 16; or.b32 d, d, r; "
)
_SPLIT = (
    "shr.u32 p, d, 16; and.b32 r, d, 0xffff; and.b32 m, p, 0x7fff; and.b32 e, p, 0x8000; add.u32 s, p, 1; "
    "setp.lt.u32 q, m, 0x7f80; selp.b32 s, s, p, q; setp.eq.u32 q, m, 0x7f80; selp.b32 s, e, s, q; "
    "setp.ge.u32 q, r, 0x8000; selp.b32 p, s, p, q; "
)
_NUMBER = "setp.nan.f32 q, {0}, {0}; mov.b32 d, {0}; selp.b32 d, 0x7fc00000, d, q; "
_HALF_WORDS = "{ .reg .b32 p0, p1, r0, r1, p, r, m, d, e, s; .reg .pred q; "
_PICK = "{take}.b32 p, p{w}{by}; {take}.b32 r, r{w}{by}; "


def _pick(k: int) -> str:
    """Element k of two words each of parameters and remainders."""
    return _PICK.format(take="shr" if k % 2 else "and", w=k // 2, by=", 16" if k % 2 else ", 0xffff")


def _put(k: int) -> str:
    joined = "shl.b32 p, p, 16; shl.b32 r, r, 16; or.b32 p{w}, p{w}, p; or.b32 r{w}, r{w}, r; "
    return (joined if k % 2 else "mov.b32 p{w}, p; mov.b32 r{w}, r; ").format(w=k // 2)


@intrinsic(
    _HALF_WORDS + "ld.global.v2.b32 {p0, p1}, [$4]; ld.global.v2.b32 {r0, r1}, [$5]; "
    + "".join(f"{_pick(k)}{_JOIN}mov.b32 ${k}, d; " for k in range(4)) + "}",
    "=f,=f,=f,=f,l,l", "ffff", "ll", lanes=True,
)
def load4_joined(param, remainder):
    return _joined(memory.load(param, np.uint16, 4), memory.load(remainder, np.uint16, 4))


@intrinsic(
    _HALF_WORDS + "".join(_NUMBER.format(f"${2 + k}") + _SPLIT + _put(k) for k in range(4))
    + "st.global.v2.b32 [$0], {p0, p1}; st.global.v2.b32 [$1], {r0, r1}; }",
    "l,l,f,f,f,f", "", "llffff", lanes=True,
)
def store4_joined(param, remainder, values):
    for address, words in zip((param, remainder), _halves(values), strict=True):
        memory.store(address, np.uint16, words)


@intrinsic(
    "{ .reg .b16 x, y; .reg .b32 p, r, m, d, e; .reg .pred q; ld.global.b16 x, [$1]; ld.global.b16 y, [$2]; "
    + "cvt.u32.u16 p, x; cvt.u32.u16 r, y; " + _JOIN + "mov.b32 $0, d; }",
    "=f,l,l", "f", "ll", lanes=True,
)
def load_joined(param, remainder):
    return _joined(memory.load(param, np.uint16), memory.load(remainder, np.uint16))[0]


@intrinsic(
    "{ .reg .b16 x, y; .reg .b32 p, r, m, d, e, s; .reg .pred q; " + _NUMBER.format("$2") + _SPLIT
    + "cvt.u16.u32 x, p; cvt.u16.u32 y, r; st.global.b16 [$0], x; st.global.b16 [$1], y; }",
    "l,l,f", "", "llf", lanes=True,
)
def store_joined(param, remainder, value):
    for address, words in zip((param, remainder), _halves((value,)), strict=True):
        memory.store(address, np.uint16, words)


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


def _joined(params, remainders):
    if type(params[0]) is np.ndarray:
        return tuple(map(join, params, remainders))
    return tuple(_join(int(param), int(remainder)) for param, remainder in zip(params, remainders, strict=True))


def _join(param, remainder):
    """`refopt.cpu.remainder.join` of one element."""
    if remainder >= HALF:
        magnitude = param & 0x7FFF
        if magnitude == 0:
            param |= INFINITY
        elif magnitude <= INFINITY:
            param -= 1
    return np.uint32(param << 16 | remainder).view(np.float32)


def _halves(values):
    return zip(*map(_split, values), strict=True)


def _split(value):
    """`refopt.cpu.remainder.split_numbers` of one element."""
    if type(value) is np.ndarray:
        return halves(number(value))
    if value != value:
        return 0x7FC0, 0
    pattern = pattern_of(value)
    param, remainder = pattern >> 16, pattern & 0xFFFF
    if remainder >= HALF:  # which infinity has not, so the sum is no NaN
        param += 1
    return param, remainder
