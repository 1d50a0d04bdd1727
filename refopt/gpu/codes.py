"""States in 8 bits, as a thread loads and stores its elements: ``refopt.cpu.codes`` on a warp (N21).

Eight neighbouring threads have a group of 32 elements, four each. The first of them loads and stores the scale, and
the largest magnitude takes three shuffles, so all threads of a warp load and store together, those without elements
too.

Integers become fp32 and back without conversions, which are slow: beside a large power of 2, the last bits of a number
are a multiple of a unit.
"""

from collections.abc import Callable
from functools import lru_cache
from typing import Any

import numpy as np

from refopt.checks.dtypes import CODED, GROUP
from refopt.cpu.codes import HALF, ROOTS, SIGNED, Codes
from refopt.gpu.patterns import pattern_of
from refopt.gpu.target import cuda, device_function, intrinsic
from refopt.gpu.vectors import SECOND, load_float32, store_float32
from refopt.simt import memory

WARP = 0xFFFFFFFF
LANES = GROUP // 4  # threads of a group


def _hex(x: Any) -> str:
    return f"0f{pattern_of(x):08x}"


def _load4(kind: Codes) -> Callable:
    base = np.float32(2.0**23) * kind.unit  # of which a unit is the last bit
    offset = base + 1 if kind.signed else base  # a signed code is read as one of 1 to 255
    parts = "".join(f"prmt.b32 ${k}, w, {pattern_of(base):#x}, {0x7650 + k:#x}; "
                    f"sub.rn.f32 ${k}, ${k}, {_hex(offset)}; " for k in range(4))
    flip = "xor.b32 w, w, 0x80808080; " if kind.signed else ""

    @intrinsic("{ .reg .b32 w; ld.global.b32 w, [$4]; " + flip + parts + "}", "=f,=f,=f,=f,l", "ffff", "l", lanes=True)
    def load4_codes(address):
        codes = memory.load(address, np.int8 if kind.signed else np.uint8, 4)
        return tuple((np.asarray(q, np.float32) * kind.unit)[()] for q in codes)

    return load4_codes


LOAD4 = {kind: _load4(kind) for kind in (SIGNED, ROOTS)}


@intrinsic("st.global.b32 [$0], $1;", "l,r", "", "lr", lanes=True)
def store4_codes(address, word):
    """Store four codes."""
    memory.store(address, np.uint32, (np.asarray(word).astype(np.uint32),))


# Before compute capability 8.0, whose maximum leaves out NaN, the larger of two numbers, or NaN.
_LARGER = ("{{ .reg .f32 b; .reg .pred p; setp.gt.f32 p, {x}, {y}; selp.f32 b, {x}, {y}, p; "
           "setp.nan.f32 p, {x}, {x}; selp.f32 $0, {x}, b, p; }}")


def _largest4(larger: str) -> str:
    parts = "".join(f"abs.f32 a, ${k}; {larger.format(x='$0', y='a')} " for k in (2, 3, 4))
    return "{ .reg .f32 a; abs.f32 $0, $1; " + parts + "}"


@intrinsic(_largest4("max.NaN.f32 $0, {x}, {y};"), "=f,f,f,f,f", "f", "ffff", (8, 0), _largest4(_LARGER), lanes=True)
def largest4(x):
    """The largest of four magnitudes, of which NaN is the largest."""
    return np.maximum(np.maximum(abs(x[0]), abs(x[1])), np.maximum(abs(x[2]), abs(x[3])))


@intrinsic("max.NaN.f32 $0, $1, $2;", "=f,f,f", "f", "ff", (8, 0), _LARGER.format(x="$1", y="$2"), lanes=True)
def larger(x):
    """The larger of two numbers, of which NaN is the largest."""
    return np.maximum(*x)


def scale_of(kind: Codes) -> Callable:
    """The scale of a group from its largest magnitude."""

    @intrinsic(
        "{ .reg .b32 b; .reg .f32 x; .reg .pred q; mul.rn.f32 x, $1, " + _hex(kind.above) + "; mov.b32 b, x; "
        f"add.u32 b, b, 12; and.b32 b, b, 0xfffffff0; setp.lt.f32 q, $1, {_hex(kind.least)}; selp.b32 b, 0, b, q; "
        "setp.geu.f32 q, x, 0f7f800000; selp.b32 b, 0x7fc00000, b, q; mov.b32 $0, b; }",
        "=f,f", "f", "f", lanes=True,
    )
    def scale(largest):
        return kind.scales(np.asarray(largest, np.float32))[()]

    return scale


def codes4(kind: Codes) -> Callable:
    """Four codes, as a word."""
    unit, base = kind.unit, np.float32(2.0**23) * kind.unit
    power, magic = (3, base * np.float32(1.5)) if kind.signed else (6, base)
    square = "" if kind.signed else "mul.rn.f32 c, c, c; "
    parts = []
    for k in range(4):
        x, u = f"${1 + k}", f"${6 + k}"
        parts.append(
            f"abs.f32 t, {x}; mul.rn.f32 t, t, i; "
            f"lg2.approx.ftz.f32 w, t; fma.rn.f32 w, w, {_hex(1 / power)}, {_hex(-(2.0**-16))}; "
            f"ex2.approx.ftz.f32 w, w; add.rm.f32 w, w, {_hex(base)}; "
            f"sub.rn.f32 v, w, {_hex(base - unit)}; sub.rn.f32 w, w, {_hex(base)}; "
            f"mul.rn.f32 c, v, v; mul.rn.f32 c, c, v; {square}setp.le.f32 p, c, t; selp.f32 w, v, w, p; "
            f"add.rn.f32 v, w, {_hex(unit)}; mul.rn.f32 c, v, v; mul.rn.f32 c, c, v; {square}mov.b32 h, c; "
            f"mul.rn.f32 c, w, w; mul.rn.f32 c, c, w; {square}"
            f"sub.rn.f32 t, t, c; sub.rn.f32 h, h, c; mul.rn.f32 h, h, {u}; setp.gt.f32 p, t, h; selp.f32 w, v, w, p; "
            + (f"copysign.f32 w, {x}, w; " if kind.signed else
               f"set.gt.f32.f32 v, {x}, 0f00000000; mul.rn.f32 v, v, {_hex(unit)}; max.f32 w, w, v; ")
            + f"add.rn.f32 q{k}, w, {_hex(magic)}; "
        )
    pack = "prmt.b32 b, q0, q1, 0x0040; prmt.b32 e, q2, q3, 0x0040; prmt.b32 b, b, e, 0x5410; "

    @intrinsic(
        "{ .reg .b32 b, e; .reg .f32 i, t, w, v, c, h, q<4>; .reg .pred p; rcp.rn.f32 i, $5; " + "".join(parts) + pack
        + "setp.gt.f32 p, $5, 0f00000000; selp.b32 $0, b, 0, p; }",
        "=r,f,f,f,f,f,f,f,f,f", "r", "fffffffff", lanes=True, exact=True,
    )
    def codes(given):
        found = [kind.codes(given[k], given[4], given[5 + k]) & 255 for k in range(4)]
        return (found[0] | found[1] << 8 | found[2] << 16 | found[3] << 24)[()]

    return codes


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
                cube = q[k] * q[k] * q[k]
                x[a, e + k] = scale * (cube if signed else cube * cube) if whole or first + k < stop else zero

    return load


@lru_cache
def store_coded(kind: Codes, chance: int) -> Callable:
    """The store; x[chance] has the chances beyond which elements go up, or, for -1, they are rounded to nearest."""
    scaled, codes, by_chance = scale_of(kind), codes4(kind), chance >= 0
    zero, half = np.float32(0), HALF

    @device_function
    def store(at, i, stop, whole, x, a):
        t, u = cuda.local.array(4, np.float32), cuda.local.array(4, np.float32)
        for part in range(2):
            first, e = i + SECOND * part, 4 * part
            for k in range(4):
                t[k] = x[a, e + k] if whole or first + k < stop else zero
                u[k] = x[chance, e + k] if by_chance else half
            largest = largest4((t[0], t[1], t[2], t[3]))
            for distance in (1, 2, 4):
                largest = larger((largest, cuda.shfl_xor_sync(WARP, largest, distance)))
            scale = scaled(largest)
            word = codes((t[0], t[1], t[2], t[3], scale, u[0], u[1], u[2], u[3]))
            if whole or first // GROUP * GROUP < stop:
                group = at + first // GROUP * CODED
                store4_codes(group + first % GROUP, word)
                if first % GROUP == 0:
                    store_float32(group + GROUP, scale)

    return store
