"""States in 8 bits, as a thread loads and stores its elements: ``refopt.cpu.codes`` on a warp (N21).

Eight neighbouring threads have a group of 32 elements, four each. The first of them loads and stores the scale, and
the largest magnitude takes three shuffles, so all threads of a warp load and store together, those without elements
too.
"""

from collections.abc import Callable
from functools import lru_cache
from typing import Any

import numpy as np

from refopt.checks.dtypes import CODED, GROUP
from refopt.cpu.codes import HALF, LEAST, ROOTS, SIGNED, Codes
from refopt.gpu.instructions import sqrt
from refopt.gpu.patterns import pattern_of
from refopt.gpu.target import cuda, device_function, intrinsic
from refopt.gpu.vectors import SECOND, load_float32, store_float32
from refopt.simt import memory

WARP = 0xFFFFFFFF
LANES = GROUP // 4  # threads of a group
INFINITE = 0x7F800000
LEAST_PATTERN = int(LEAST.view(np.uint32))


def _load4(kind: Any, ptx: str) -> Callable:
    parts = "".join(f"bfe.{ptx}32 q, w, {8 * k}, 8; cvt.rn.f32.{ptx}32 ${k}, q; " for k in range(4))

    @intrinsic("{ .reg .b32 w, q; ld.global.b32 w, [$4]; " + parts + "}", "=f,=f,=f,=f,l", "ffff", "l", lanes=True)
    def load4_codes(address):
        return tuple(np.asarray(q, np.float32)[()] for q in memory.load(address, kind, 4))

    return load4_codes


LOAD4 = {SIGNED: _load4(np.int8, "s"), ROOTS: _load4(np.uint8, "u")}


@intrinsic(
    "{ .reg .b32 w, q; cvt.rni.s32.f32 w, $1; and.b32 w, w, 255; "
    + "".join(f"cvt.rni.s32.f32 q, ${1 + k}; bfi.b32 w, q, w, {8 * k}, 8; " for k in range(1, 4))
    + "st.global.b32 [$0], w; }",
    "l,f,f,f,f", "", "lffff", lanes=True,
)
def store4_codes(address, codes):
    """Store four codes of either kind: integers as fp32."""
    memory.store(address, np.uint8, tuple(np.asarray(q).astype(np.int64) & 255 for q in codes))


@intrinsic(
    "{ .reg .b32 a; and.b32 $0, $1, 0x7fffffff; "
    + "".join(f"and.b32 a, ${k}, 0x7fffffff; max.u32 $0, $0, a; " for k in (2, 3, 4)) + "}",
    "=r,f,f,f,f", "r", "ffff", lanes=True,
)
def largest4(x):
    """The pattern of the largest of four magnitudes, of which NaN is the largest."""
    first, *others = (pattern_of(value) & 0x7FFFFFFF for value in x)
    for other in others:
        first = np.maximum(first, other)
    return first


def scale_of(kind: Codes) -> Callable:
    """The scale of a group from the pattern of its largest magnitude."""
    inverse = int(kind.inverse.view(np.uint32))

    @intrinsic(
        "{ .reg .b32 b, o; .reg .f32 x; .reg .pred q; mov.b32 x, $1; mul.rn.f32 x, x, 0f" + f"{inverse:08x}; "
        "mov.b32 b, x; shr.u32 o, b, 4; and.b32 o, o, 1; add.u32 o, o, 7; add.u32 b, b, o; and.b32 b, b, 0xfffffff0; "
        f"setp.lt.u32 q, $1, {LEAST_PATTERN:#x}; selp.b32 b, 0, b, q; "
        f"setp.ge.u32 q, $1, {INFINITE:#x}; selp.b32 b, 0x7fc00000, b, q; mov.b32 $0, b; }}",
        "=f,r", "f", "r", lanes=True,
    )
    def scale(pattern):
        pattern = np.asarray(pattern, np.uint32)
        found = kind.scales(np.where(pattern > INFINITE, np.uint32(0x7FC00000), pattern).view(np.float32))
        return found[()]

    return scale


# z is m to the power of -1/3: from the exponent over 3, then twice by Newton's method; m z z is within 1 of the root.
_NEWTON = (
    "mul.rn.f32 y, z, z; mul.rn.f32 y, y, z; mul.rn.f32 y, y, m; mul.rn.f32 y, y, 0fbeaaaaab; "
    "add.rn.f32 y, y, 0f3faaaaab; mul.rn.f32 z, z, y; "
)
_ROOT = (
    "max.f32 m, ${t}, 0f3f800000; mov.b32 b, m; mul.hi.u32 b, b, 0x55555556; sub.u32 b, 0x54a2fa8c, b; "
    "mov.b32 z, b; " + _NEWTON * 2
    + "mul.rn.f32 z, z, z; mul.rn.f32 z, z, m; cvt.rmi.f32.f32 z, z; "
    "mul.rn.f32 y, z, z; mul.rn.f32 y, y, z; setp.gt.f32 q, y, ${t}; sub.rn.f32 c, z, 0f3f800000; selp.f32 z, c, z, q; "
    "add.rn.f32 y, z, 0f3f800000; mul.rn.f32 c, y, y; mul.rn.f32 c, c, y; setp.le.f32 q, c, ${t}; "
    "selp.f32 z, y, z, q; mov.b32 ${k}, z; "
)


@intrinsic(
    "{ .reg .b32 b; .reg .f32 m, z, y, c; .reg .pred q; "
    + "".join(_ROOT.format(t=4 + k, k=k) for k in range(4)) + "}",
    "=f,=f,=f,=f,f,f,f,f", "ffff", "ffff", lanes=True,
)
def cube_root4(t):
    """The largest integers whose cubes are not above four numbers from 0 to 2**24: exact, whatever it starts from."""
    return tuple(np.floor(np.cbrt(np.asarray(x, np.float64)) * (1 + 2.0**-50)).astype(np.float32)[()] for x in t)


def _code(kind: Codes) -> Callable:
    """``code(t, below, u)``: the code, without a sign, of a magnitude t in scales; u as in `refopt.cpu.codes`."""
    zero, one, last, signed = np.float32(0), np.float32(1), np.float32(kind.most - 1), kind.signed

    @device_function
    def code(t, below, u):
        lower = min(below, last)
        upper = lower + one
        low, high = lower * lower * lower, upper * upper * upper
        over, step = t - low, high - low
        if not signed:
            over, step = over * (t + low), step * (high + low)
        q = upper if over > u * step else lower
        return one if not signed and t > zero and q < one else q

    return code


@lru_cache
def load_coded(kind: Codes) -> Callable:
    """The load of a thread's elements of a state in 8 bits, as `refopt.gpu.rows.Access` has it."""
    load4, signed, zero = LOAD4[kind], kind.signed, np.float32(0)

    @device_function
    def load(at, i, stop, whole, x, a):
        for part in range(2):
            first, e = i + SECOND * part, 4 * part
            group, there = at + first // GROUP * CODED, whole or first // GROUP * GROUP < stop
            scale = load_float32(group + GROUP) if there and first % GROUP == 0 else zero
            scale = cuda.shfl_sync(WARP, scale, cuda.threadIdx.x % 32 // LANES * LANES)
            q = load4(group + first % GROUP) if there else (zero, zero, zero, zero)
            for k in range(4):
                r = scale * (q[k] * q[k] * q[k])
                x[a, e + k] = (r if signed else r * r) if whole or first + k < stop else zero

    return load


@lru_cache
def store_coded(kind: Codes, chance: int) -> Callable:
    """The store; x[chance] has the chances beyond which elements go up, or, for -1, they are rounded to nearest."""
    scaled, code, signed, by_chance = scale_of(kind), _code(kind), kind.signed, chance >= 0
    zero, one, half = np.float32(0), np.float32(1), HALF

    @device_function
    def magnitude(x):
        return abs(x) if signed else sqrt(x)

    @device_function
    def store(at, i, stop, whole, x, a):
        t, q = cuda.local.array(4, np.float32), cuda.local.array(4, np.float32)
        for part in range(2):
            first, e = i + SECOND * part, 4 * part
            for k in range(4):
                t[k] = magnitude(x[a, e + k]) if whole or first + k < stop else zero
            pattern = np.int32(largest4((t[0], t[1], t[2], t[3])))
            for distance in (1, 2, 4):
                pattern = max(pattern, cuda.shfl_xor_sync(WARP, pattern, distance))
            scale = scaled(pattern)
            there = scale > zero  # neither 0 nor NaN
            inverse = one / scale if there else zero
            for k in range(4):
                t[k] = t[k] * inverse if there else zero
            below = cube_root4((t[0], t[1], t[2], t[3]))
            for k in range(4):
                q[k] = code(t[k], below[k], x[chance, e + k] if by_chance else half)
                q[k] = -q[k] if signed and x[a, e + k] < zero else q[k]
            if whole or first // GROUP * GROUP < stop:
                group = at + first // GROUP * CODED
                store4_codes(group + first % GROUP, (q[0], q[1], q[2], q[3]))
                if first % GROUP == 0:
                    store_float32(group + GROUP, scale)

    return store
