"""Loads and stores of a bf16 parameter and its remainder, which together are an fp32 or its upper 24 bits (N15).

On the executor they are ``refopt.cpu.remainder``.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from refopt.checks.dtypes import REMAINDERS
from refopt.cpu.remainder import NAN, join, split
from refopt.gpu.target import intrinsic
from refopt.simt import memory

# The bits of a value as d, with one NaN; of 24 bits, rounded to even.
_NUMBER = f"setp.nan.f32 q, {{x}}, {{x}}; mov.b32 {{d}}, {{x}}; selp.b32 {{d}}, {NAN:#x}, {{d}}, q; "
_TO_24_BITS = "bfe.u32 m, {d}, 8, 1; add.u32 {d}, {d}, m; add.u32 {d}, {d}, 0x7f; "


class Joined(NamedTuple):
    """The loads and stores of one element, and of four; and four values rounded as parameters are, alone and joined."""

    load: Callable
    load4: Callable
    store: Callable
    store4: Callable
    round4: Callable
    round4_joined: Callable


def _joined(dtype: str) -> Joined:
    short, kind = dtype == "int8", np.dtype(dtype).type
    bits = _NUMBER + (_TO_24_BITS if short else "")

    def joined(address: Any, rest: Any, count: int) -> tuple:
        pairs = zip(memory.load(address, np.uint16, count), memory.load(rest, kind, count), strict=True)
        return tuple(join(np.asarray(p), np.asarray(r))[()] for p, r in pairs)

    def put(address: Any, rest: Any, values: tuple) -> None:
        parts = [split(np.asarray(x, np.float32), dtype) for x in values]
        memory.store(address, np.uint16, tuple(param.view(np.uint16)[()] for param, _ in parts))
        memory.store(rest, kind, tuple(remainder[()] for _, remainder in parts))

    @intrinsic(
        "{ .reg .b32 d, m; ld.global.u16 d, [$1]; shl.b32 d, d, 16; "
        + ("ld.global.s8 m, [$2]; shl.b32 m, m, 8; " if short else "ld.global.s16 m, [$2]; ")
        + "add.u32 d, d, m; mov.b32 $0, d; }",
        "=f,l,l", "f", "ll", lanes=True,
    )
    def load_joined(param, remainder):
        return joined(param, remainder, 1)[0]

    # Bytes of parameters for the upper halves of words, and of remainders with their sign before them, from two words.
    parts = []
    for k in range(4):
        w, low = k // 2, k % 2 * 2
        upper = f"{low + 1:x}{low:x}44"
        lower = f"{8 | k:x}{8 | k:x}{k:x}4" if short else f"{9 | low:x}{9 | low:x}{low + 1:x}{low:x}"
        parts.append(f"prmt.b32 d, p{w}, 0, 0x{upper}; prmt.b32 m, r{0 if short else w}, 0, 0x{lower}; "
                     f"add.u32 d, d, m; mov.b32 ${k}, d; ")
    load_rest = "ld.global.b32 r0, [$5]; " if short else "ld.global.v2.b32 {r0, r1}, [$5]; "

    @intrinsic(
        "{ .reg .b32 p<2>, r<2>, d, m; ld.global.v2.b32 {p0, p1}, [$4]; " + load_rest + "".join(parts) + "}",
        "=f,=f,=f,=f,l,l", "ffff", "ll", lanes=True,
    )
    def load4_joined(param, remainder):
        return joined(param, remainder, 4)

    @intrinsic(
        "{ .reg .b32 d, m; .reg .pred q; " + bits.format(x="$2", d="d")
        + ("shr.u32 m, d, 8; st.global.b8 [$1], m; " if short else "and.b32 m, d, 0xffff; st.global.b16 [$1], m; ")
        + "add.u32 d, d, 0x8000; shr.u32 d, d, 16; st.global.b16 [$0], d; }",
        "l,l,f", "", "llf", lanes=True,
    )
    def store_joined(param, remainder, value):
        put(param, remainder, (value,))

    rests = "prmt.b32 d0, d0, d1, 0x0051; prmt.b32 d2, d2, d3, 0x0051; prmt.b32 d0, d0, d2, 0x5410; " if short else (
        "prmt.b32 d0, d0, d1, 0x5410; prmt.b32 d2, d2, d3, 0x5410; ")
    store_rest = "st.global.b32 [$1], d0; " if short else "st.global.v2.b32 [$1], {d0, d2}; "

    @intrinsic(
        "{ .reg .b32 d<4>, e<4>, m; .reg .pred q; "
        + "".join(bits.format(x=f"${2 + k}", d=f"d{k}") + f"add.u32 e{k}, d{k}, 0x8000; " for k in range(4))
        + "prmt.b32 e0, e0, e1, 0x7632; prmt.b32 e2, e2, e3, 0x7632; st.global.v2.b32 [$0], {e0, e2}; "
        + rests + store_rest + "}",
        "l,l,f,f,f,f", "", "llffff", lanes=True,
    )
    def store4_joined(param, remainder, values):
        put(param, remainder, values)

    def rounded(last: str) -> tuple[str, str, str, str]:
        each = "".join(f"{bits.format(x=f'${4 + k}', d='d')}{last}mov.b32 ${k}, d; " for k in range(4))
        return f"{{ .reg .b32 d, m; .reg .pred q; {each}}}", "=f,=f,=f,=f,f,f,f,f", "ffff", "ffff"

    @intrinsic(*rounded("add.u32 d, d, 0x8000; and.b32 d, d, 0xffff0000; "), lanes=True)
    def round4_away(x):
        return tuple(split(np.array(x, np.float32), dtype)[0].astype(np.float32))  # of many threads, four rows

    @intrinsic(*rounded("and.b32 d, d, 0xffffff00; " if short else ""), lanes=True)
    def round4_joined(x):
        return tuple(join(*split(np.array(x, np.float32), dtype)))

    return Joined(load_joined, load4_joined, store_joined, store4_joined, round4_away, round4_joined)


JOINED = {dtype: _joined(dtype) for dtype in REMAINDERS}
