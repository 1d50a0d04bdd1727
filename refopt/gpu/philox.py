"""Stochastic rounding to bf16: ``refopt.cpu.stochastic`` for a thread's four neighbouring elements (N16)."""

from collections.abc import Callable
from functools import lru_cache
from typing import Any

import numpy as np

from refopt.cpu.codes import chance
from refopt.cpu.stochastic import KEY_STEPS, MULTIPLIERS, ROUNDS, dither, philox
from refopt.gpu.patterns import WIDENED, pattern_of
from refopt.gpu.target import device_function, intrinsic
from refopt.gpu.vectors import SECOND

WORD = 0xFFFFFFFF

_ROUND = (
    f"mul.hi.u32 a, c0, {MULTIPLIERS[0]:#x}; mul.lo.u32 b, c0, {MULTIPLIERS[0]:#x}; "
    f"mul.hi.u32 c, c2, {MULTIPLIERS[1]:#x}; mul.lo.u32 d, c2, {MULTIPLIERS[1]:#x}; "
    "xor.b32 c0, c, c1; xor.b32 c0, c0, k0; xor.b32 c2, a, c3; xor.b32 c2, c2, k1; mov.b32 c1, d; mov.b32 c3, b; "
    f"add.u32 k0, k0, {KEY_STEPS[0]:#x}; add.u32 k1, k1, {KEY_STEPS[1]:#x}; "
)


@intrinsic(
    "{ .reg .b32 a, b, c, d, c0, c1, c2, c3, k0, k1; mov.b64 {c0, c1}, $4; cvt.u32.u64 c2, $5; mov.b32 c3, 0; "
    "cvt.u32.u64 k0, $6; mov.b32 k1, 0; " + _ROUND * ROUNDS
    + "mov.b32 $0, c0; mov.b32 $1, c1; mov.b32 $2, c2; mov.b32 $3, c3; }",
    "=r,=r,=r,=r,l,l,l", "rrrr", "lll", lanes=True,
)
def random4(quad, pair, seed):
    """Four random words, from the numbers of a quad of neighbours and of a pair of arrays, and the seed."""
    if type(quad) is np.ndarray:
        return tuple(philox(np.stack([quad & WORD, quad >> 32, quad * 0 + pair, quad * 0]), (seed, 0)))
    return _words(int(quad), pair, int(seed))


@lru_cache(1 << 16)
def _words(quad: int, pair: int, seed: int) -> tuple[int, int, int, int]:
    """`refopt.cpu.stochastic.philox` of one counter; cached, since steps and arrays of one seed share counters."""
    k0, k1 = seed, 0
    c0, c1, c2, c3 = quad & WORD, quad >> 32, pair, 0
    for _ in range(ROUNDS):
        first, second = c0 * MULTIPLIERS[0], c2 * MULTIPLIERS[1]
        c0, c1, c2, c3 = second >> 32 ^ c1 ^ k0, second & WORD, first >> 32 ^ c3 ^ k1, first & WORD
        k0, k1 = k0 + KEY_STEPS[0] & WORD, k1 + KEY_STEPS[1] & WORD
    return c0, c1, c2, c3


def _dither(shift: int) -> str:
    one = (
        "mov.b32 x, ${x}; {take}; add.u32 r, x, r; and.b32 r, r, 0xffff0000; and.b32 m, x, 0x7f800000; "
        "setp.eq.u32 q, m, 0x7f800000; selp.b32 x, x, r, q; mov.b32 ${k}, x; "
    )
    take = "shr.u32 r, ${w}, 16" if shift else "and.b32 r, ${w}, 0xffff"
    parts = [one.format(k=k, x=4 + k, take=take.format(w=8 + k)) for k in range(4)]
    return "{ .reg .b32 x, r, m; .reg .pred q; " + "".join(parts) + "}"


@intrinsic(_dither(0), "=f,=f,=f,=f,f,f,f,f,r,r,r,r", "ffff", "ffffrrrr", lanes=True)
def dither4_low(x, words):
    """Four values rounded to bf16 by the lower halves of four words."""
    return tuple(_dithered(value, word & 0xFFFF) for value, word in zip(x, words, strict=True))


@intrinsic(_dither(16), "=f,=f,=f,=f,f,f,f,f,r,r,r,r", "ffff", "ffffrrrr", lanes=True)
def dither4_high(x, words):
    """Four values rounded to bf16 by the upper halves of four words."""
    return tuple(_dithered(value, word >> 16) for value, word in zip(x, words, strict=True))


def _chances(shift: int) -> str:
    parts = [f"shr.u32 r, ${4 + k}, {shift + 2}; and.b32 r, r, 0x3fff; cvt.rn.f32.u32 x, r; "
             f"add.rn.f32 x, x, 0f3f000000; mul.rn.f32 ${k}, x, 0f38800000; " for k in range(4)]
    return "{ .reg .b32 r; .reg .f32 x; " + "".join(parts) + "}"


@intrinsic(_chances(0), "=f,=f,=f,=f,r,r,r,r", "ffff", "rrrr", lanes=True)
def chances4_low(words):
    """Four chances, as `refopt.cpu.codes.chances` has them, from the lower halves of four words."""
    return tuple(chance(np.asarray(word & 0xFFFF))[()] for word in words)


@intrinsic(_chances(16), "=f,=f,=f,=f,r,r,r,r", "ffff", "rrrr", lanes=True)
def chances4_high(words):
    """Four chances from the upper halves of four words."""
    return tuple(chance(np.asarray(word >> 16))[()] for word in words)


def _dithered(value: Any, bits: int) -> Any:
    """`refopt.cpu.stochastic.dither` of one value; infinity and NaN are unchanged."""
    if type(value) is np.ndarray:
        return dither(value, bits)  # type: ignore[arg-type]
    pattern = pattern_of(value)
    return value if pattern & 0x7F800000 == 0x7F800000 else WIDENED[pattern + bits >> 16]


def by_chance(rows: tuple[int, ...], chances: frozenset[int] = frozenset()) -> Callable:
    """``round_by_chance(i, seed, x)``: rounds a thread's elements of arrays to bf16 stochastically, in x.

    ``rows[n]`` is the array of x that has number n in `refopt.cpu.stochastic.random16`, or -1 if it is not rounded;
    those in ``chances`` get the chances by which codes are rounded. Arrays 2n and 2n + 1 share their words, and take
    half of each.
    """
    pairs = len(rows) // 2
    low_chance = tuple(row in chances for row in rows[::2])
    high_chance = tuple(row in chances for row in rows[1::2])

    @device_function
    def round_by_chance(i, seed, x):
        for pair in range(pairs):
            low, high = rows[2 * pair], rows[2 * pair + 1]
            if low >= 0 or high >= 0:
                for half in range(2):
                    e, words = 4 * half, random4(i + SECOND * half >> 2, pair, seed)
                    if low >= 0:
                        new = (chances4_low(words) if low_chance[pair] else
                               dither4_low((x[low, e], x[low, e + 1], x[low, e + 2], x[low, e + 3]), words))
                        x[low, e], x[low, e + 1], x[low, e + 2], x[low, e + 3] = new
                    if high >= 0:
                        new = (chances4_high(words) if high_chance[pair] else
                               dither4_high((x[high, e], x[high, e + 1], x[high, e + 2], x[high, e + 3]), words))
                        x[high, e], x[high, e + 1], x[high, e + 2], x[high, e + 3] = new

    return round_by_chance
