"""Loads and stores at an address: four elements at a time, or one where that is not possible.

Numba emits no vector access by itself, and scalar loads stop at three quarters of the bandwidth of a GPU.
Every function here is inline PTX; its body is what the executor runs instead. Values are fp32 or fp64:
16-bit types widen as they are loaded and are rounded to nearest even as they are stored (numerics, N1).

A warp works on rows of 256 elements. Thread t holds elements 4t..4t+3 and 128+4t..128+4t+3 of a row, so
each access of the warp is contiguous: 16 bytes a thread for fp32, 8 for fp16 and bf16, twice 16 for fp64.
"""

from collections.abc import Callable
from functools import lru_cache
from struct import Struct
from typing import NamedTuple

import numpy as np

from refopt.cpu.remainder import HALF, INFINITY
from refopt.dtypes import SIZES
from refopt.gpu.target import device_function, intrinsic
from refopt.simt import memory

ROW = 256
SECOND = 128  # from a thread's first four elements of a row to its other four
# What the L2 cache is to do with a line: hold it longest, or give it up first. The numbers are what the PTX
# instruction createpolicy makes; as constants they take no register.
POLICIES = {"keep": 0x14F0000000000000, "pass": 0x12F0000000000000}


@intrinsic("ld.global.v4.f32 {$0, $1, $2, $3}, [$4];", "=f,=f,=f,=f,l", "ffff", "l")
def load4_float32(address):
    return memory.load(address, np.float32, 4)


@intrinsic("st.global.v4.f32 [$0], {$1, $2, $3, $4};", "l,f,f,f,f", "", "lffff")
def store4_float32(address, values):
    memory.store(address, np.float32, values)


@intrinsic("ld.global.v2.f64 {$0, $1}, [$2];", "=d,=d,l", "dd", "l")
def load2_float64(address):
    return memory.load(address, np.float64, 2)


@intrinsic("st.global.v2.f64 [$0], {$1, $2};", "l,d,d", "", "ldd")
def store2_float64(address, values):
    memory.store(address, np.float64, values)


@device_function
def load4_float64(address):
    return load2_float64(address) + load2_float64(address + 16)


@device_function
def store4_float64(address, values):
    store2_float64(address, values[:2])
    store2_float64(address + 16, values[2:])


# Four 16-bit elements are two 32-bit words, the first element of each in its lower half.
_WORDS = "{ .reg .b32 w0, w1; .reg .b16 h0, h1, h2, h3; "
_LOAD = _WORDS + "ld.global.v2.b32 {w0, w1}, [$4]; "
_HALVES = "mov.b32 {h0, h1}, w0; mov.b32 {h2, h3}, w1; "
_STORE = "mov.b32 w0, {h0, h1}; mov.b32 w1, {h2, h3}; st.global.v2.b32 [$0], {w0, w1}; }"


def _four(instruction: str) -> str:
    return "".join(instruction.format(k, k + 1) for k in range(4))


@intrinsic(_LOAD + _HALVES + _four("cvt.f32.f16 ${0}, h{0}; ") + "}", "=f,=f,=f,=f,l", "ffff", "l")
def load4_float16(address):
    return tuple(np.float32(x) for x in memory.load(address, np.float16, 4))


@intrinsic(_WORDS + _four("cvt.rn.f16.f32 h{0}, ${1}; ") + _STORE, "l,f,f,f,f", "", "lffff")
def store4_float16(address, values):
    memory.store(address, np.float16, tuple(np.float16(x) for x in values))


@intrinsic(
    _LOAD + "shl.b32 $0, w0, 16; and.b32 $1, w0, 0xffff0000; shl.b32 $2, w1, 16; and.b32 $3, w1, 0xffff0000; }",
    "=f,=f,=f,=f,l", "ffff", "l",
)  # fmt: skip
def load4_bfloat16(address):
    return tuple(_widen_brain(x) for x in memory.load(address, np.uint16, 4))


@intrinsic(_WORDS + _four("cvt.rn.bf16.f32 h{0}, ${1}; ") + _STORE, "l,f,f,f,f", "", "lffff")
def store4_bfloat16(address, values):
    memory.store(address, np.uint16, tuple(_round_brain(x) for x in values))


@intrinsic("ld.global.f32 $0, [$1];", "=f,l", "f", "l")
def load_float32(address):
    return memory.load(address, np.float32)[0]


@intrinsic("st.global.f32 [$0], $1;", "l,f", "", "lf")
def store_float32(address, value):
    memory.store(address, np.float32, (value,))


@intrinsic("ld.global.f64 $0, [$1];", "=d,l", "d", "l")
def load_float64(address):
    return memory.load(address, np.float64)[0]


@intrinsic("st.global.f64 [$0], $1;", "l,d", "", "ld")
def store_float64(address, value):
    memory.store(address, np.float64, (value,))


@intrinsic("{ .reg .b16 h; ld.global.b16 h, [$1]; cvt.f32.f16 $0, h; }", "=f,l", "f", "l")
def load_float16(address):
    return np.float32(memory.load(address, np.float16)[0])


@intrinsic("{ .reg .b16 h; cvt.rn.f16.f32 h, $1; st.global.b16 [$0], h; }", "l,f", "", "lf")
def store_float16(address, value):
    memory.store(address, np.float16, (np.float16(value),))


@intrinsic("{ .reg .b16 h, z; mov.b16 z, 0; ld.global.b16 h, [$1]; mov.b32 $0, {z, h}; }", "=f,l", "f", "l")
def load_bfloat16(address):
    return _widen_brain(memory.load(address, np.uint16)[0])


@intrinsic("{ .reg .b16 h; cvt.rn.bf16.f32 h, $1; st.global.b16 [$0], h; }", "l,f", "", "lf")
def store_bfloat16(address, value):
    memory.store(address, np.uint16, (_round_brain(value),))


@intrinsic("{ .reg .b16 h; cvt.rn.f16.f32 h, $1; cvt.f32.f16 $0, h; }", "=f,f", "f", "f")
def round_float16(value):
    return np.float32(np.float16(value))


@intrinsic("{ .reg .b16 h, z; mov.b16 z, 0; cvt.rn.bf16.f32 h, $1; mov.b32 $0, {z, h}; }", "=f,f", "f", "f")
def round_bfloat16(value):
    return _widen_brain(_round_brain(value))


# All bf16 numbers as fp32, by their patterns: on the executor a look-up takes a twentieth of a view's time.
WIDENED = (np.arange(2**16, dtype=np.uint32) << np.uint32(16)).view(np.float32)
_word: Callable[..., tuple[int]] = Struct("=I").unpack


def _widen_brain(pattern):
    return WIDENED[int(pattern)]


def pattern_of(value):
    """The bits of a number as fp32."""
    return _word(value if type(value) is np.float32 else np.float32(value))[0]


def _round_brain(value):
    if value != value:
        return 0x7FFF
    pattern = pattern_of(value)
    return (pattern + 0x7FFF + (pattern >> 16 & 1)) >> 16


# An element's exact pattern of its parameter's bits and its remainder, and back (numerics, N15).
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
    "=f,=f,=f,=f,l,l", "ffff", "ll",
)  # fmt: skip
def load4_joined(param, remainder):
    return _joined(memory.load(param, np.uint16, 4), memory.load(remainder, np.uint16, 4))


@intrinsic(
    _HALF_WORDS + "".join(_NUMBER.format(f"${2 + k}") + _SPLIT + _put(k) for k in range(4))
    + "st.global.v2.b32 [$0], {p0, p1}; st.global.v2.b32 [$1], {r0, r1}; }",
    "l,l,f,f,f,f", "", "llffff",
)  # fmt: skip
def store4_joined(param, remainder, values):
    for address, halves in zip((param, remainder), _halves(values), strict=True):
        memory.store(address, np.uint16, halves)


@intrinsic(
    "{ .reg .b16 x, y; .reg .b32 p, r, m, d, e; .reg .pred q; ld.global.b16 x, [$1]; ld.global.b16 y, [$2]; "
    + "cvt.u32.u16 p, x; cvt.u32.u16 r, y; " + _JOIN + "mov.b32 $0, d; }",
    "=f,l,l", "f", "ll",
)  # fmt: skip
def load_joined(param, remainder):
    return _joined(memory.load(param, np.uint16), memory.load(remainder, np.uint16))[0]


@intrinsic(
    "{ .reg .b16 x, y; .reg .b32 p, r, m, d, e, s; .reg .pred q; " + _NUMBER.format("$2") + _SPLIT
    + "cvt.u16.u32 x, p; cvt.u16.u32 y, r; st.global.b16 [$0], x; st.global.b16 [$1], y; }",
    "l,l,f", "", "llf",
)  # fmt: skip
def store_joined(param, remainder, value):
    for address, halves in zip((param, remainder), _halves((value,)), strict=True):
        memory.store(address, np.uint16, halves)


def _joined(params, remainders):
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
    if value != value:
        return 0x7FC0, 0
    pattern = pattern_of(value)
    param, remainder = pattern >> 16, pattern & 0xFFFF
    if remainder >= HALF:  # a value that is not NaN has a remainder only below infinity
        param += 1
    return param, remainder


class Access(NamedTuple):
    """How a thread loads and stores its eight elements of a row: ``load(address, first, stop)``.

    ``first`` is the index of the thread's first element, ``stop`` where the elements end.
    """

    load: Callable
    store: Callable


@lru_cache
def access(dtype: str, real: type, partial: bool, policy: str = "") -> Access:
    """The access to rows of a dtype, with values of an arithmetic type.

    Full access takes the row to be all there and aligned; its loads may have a policy for the L2 cache.
    Partial access loads 0 for elements at or beyond ``stop`` and does not store them.
    """
    return _partial(dtype, real) if partial else _full(dtype, real, policy)


@lru_cache
def exact_access(param: str, master: str | None, real: type, partial: bool, policy: str = "") -> Access:
    """The access to the exact parameters, wherever they are: ``load(p, x, first, stop)``.

    ``p`` is the address of the parameter, ``x`` that of its master or remainder, 0 if there is none. ``store``
    takes the exact values and, besides, those that the parameter is rounded from where there is no remainder.
    """
    if master == "uint16":
        return _joined_access(partial, policy)
    rounded, own = access(param, real, partial), access(master or param, real, partial, policy)
    load_exact, store_exact, store_rounded = own.load, own.store, rounded.store
    has_master = master is not None

    @device_function
    def load(p, x, first, stop):
        return load_exact(x if has_master else p, first, stop)

    @device_function
    def store(p, x, first, stop, exact, rounded):
        store_rounded(p, first, stop, rounded)
        if has_master:
            store_exact(x, first, stop, exact)

    return Access(load, store)


def _joined_access(partial: bool, policy: str) -> Access:
    zero, load4 = np.float32(0), _with_policy(load4_joined, policy)

    @device_function
    def load(p, r, first, stop):
        p, r = p + 2 * first, r + 2 * first
        return load4(p, r) + load4(p + 2 * SECOND, r + 2 * SECOND)

    @device_function
    def store(p, r, first, stop, exact, rounded):
        p, r = p + 2 * first, r + 2 * first
        store4_joined(p, r, exact[:4])
        store4_joined(p + 2 * SECOND, r + 2 * SECOND, exact[4:])

    @device_function
    def load_or_zero(p, r, there):
        if there:
            return load_joined(p, r)
        return zero

    @device_function
    def load_some(p, r, first, stop):
        p, r, left = p + 2 * first, r + 2 * first, stop - first
        return (
            load_or_zero(p, r, left > 0),
            load_or_zero(p + 2, r + 2, left > 1),
            load_or_zero(p + 4, r + 4, left > 2),
            load_or_zero(p + 6, r + 6, left > 3),
            load_or_zero(p + 2 * SECOND, r + 2 * SECOND, left > SECOND),
            load_or_zero(p + 2 * SECOND + 2, r + 2 * SECOND + 2, left > SECOND + 1),
            load_or_zero(p + 2 * SECOND + 4, r + 2 * SECOND + 4, left > SECOND + 2),
            load_or_zero(p + 2 * SECOND + 6, r + 2 * SECOND + 6, left > SECOND + 3),
        )

    @device_function
    def store_some(p, r, first, stop, exact, rounded):
        p, r, left = p + 2 * first, r + 2 * first, stop - first
        for k in range(4):
            if left > k:
                store_joined(p + 2 * k, r + 2 * k, exact[k])
            if left > SECOND + k:
                store_joined(p + 2 * (SECOND + k), r + 2 * (SECOND + k), exact[k + 4])

    return Access(load_some, store_some) if partial else Access(load, store)


def _with_policy(load: Callable, policy: str) -> Callable:
    """A vector load with a cache policy, if one is given."""
    if not policy:
        return load
    asm, *types = load.asm  # type: ignore[attr-defined]
    asm = asm.replace("ld.global.", "ld.global.L2::cache_hint.").replace("];", "], policy;")
    asm = f"{{ .reg .b64 policy; mov.b64 policy, {POLICIES[policy]:#x}; {asm} }}"
    return intrinsic(asm, *types)(lambda *addresses: load(*addresses))


def _full(dtype: str, real: type, policy: str) -> Access:
    size, apart = SIZES[dtype], SIZES[dtype] * SECOND
    load4, store4 = globals()[f"load4_{dtype}"], globals()[f"store4_{dtype}"]
    if dtype != "float64":  # whose four elements are two loads
        load4 = _with_policy(load4, policy)

    @device_function
    def load(address, first, stop):
        at = address + size * first
        return load4(at) + load4(at + apart)

    @device_function
    def load_widened(address, first, stop):
        at = address + size * first
        x, y = load4(at), load4(at + apart)
        return real(x[0]), real(x[1]), real(x[2]), real(x[3]), real(y[0]), real(y[1]), real(y[2]), real(y[3])

    @device_function
    def store(address, first, stop, values):
        at = address + size * first
        store4(at, values[:4])
        store4(at + apart, values[4:])

    widens = real is np.float64 and dtype != "float64"
    return Access(load_widened if widens else load, store)


def _partial(dtype: str, real: type) -> Access:
    size, zero = SIZES[dtype], real(0)
    load1, store1 = globals()[f"load_{dtype}"], globals()[f"store_{dtype}"]

    @device_function
    def load_or_zero(address, there):
        if there:
            return real(load1(address))
        return zero

    @device_function
    def load(address, first, stop):
        at, left = address + size * first, stop - first
        return (
            load_or_zero(at, left > 0),
            load_or_zero(at + size, left > 1),
            load_or_zero(at + size * 2, left > 2),
            load_or_zero(at + size * 3, left > 3),
            load_or_zero(at + size * SECOND, left > SECOND),
            load_or_zero(at + size * (SECOND + 1), left > SECOND + 1),
            load_or_zero(at + size * (SECOND + 2), left > SECOND + 2),
            load_or_zero(at + size * (SECOND + 3), left > SECOND + 3),
        )

    @device_function
    def store(address, first, stop, values):
        at, left = address + size * first, stop - first
        for k in range(4):
            if left > k:
                store1(at + size * k, values[k])
            if left > SECOND + k:
                store1(at + size * (SECOND + k), values[k + 4])

    return Access(load, store)


@lru_cache
def rounded8(dtype: str) -> Callable:
    """Eight values as they are after a store in a dtype."""
    if SIZES[dtype] > 2:
        return device_function(lambda x: x)
    once = globals()[f"round_{dtype}"]

    @device_function
    def rounded(x):
        return once(x[0]), once(x[1]), once(x[2]), once(x[3]), once(x[4]), once(x[5]), once(x[6]), once(x[7])

    return rounded


@lru_cache
def kept8(real: type, partial: bool) -> Callable:
    """Eight values of a row, with 0 in the place of those at or beyond ``stop`` if access is partial."""
    zero = real(0)

    @device_function
    def all_of(x, first, stop):
        return x

    @device_function
    def some_of(x, first, stop):
        return (
            x[0] if first < stop else zero,
            x[1] if first + 1 < stop else zero,
            x[2] if first + 2 < stop else zero,
            x[3] if first + 3 < stop else zero,
            x[4] if first + SECOND < stop else zero,
            x[5] if first + SECOND + 1 < stop else zero,
            x[6] if first + SECOND + 2 < stop else zero,
            x[7] if first + SECOND + 3 < stop else zero,
        )

    return some_of if partial else all_of
