"""Loads and stores at an address: four elements at a time, or one where that is not possible.

Bytes in flight hide the latency of memory, and a thread can have only so many loads in flight at a time. So each load
should be large: at most 16 bytes, up to compute capability 9.0. A kernel that loads 4 bytes at a time reaches three
quarters of the bandwidth of a GPU. A vector access moves several registers at once: ``.v4`` four of 32 bits, ``.v2``
two of 64, or two of 32 for four 16-bit elements. Its address must be a multiple of its size. Numba emits no vector
accesses; here they are inline PTX, each with a Python twin that the executor runs instead. Both are generated from a
table of dtypes, `FORMATS`.

Values are fp32 or fp64. fp16 and bf16 are for storage only: a separate instruction widens a number after it is loaded,
which is exact, and another rounds it to nearest even before it is stored (numerics, N1).

Four elements are 16 bytes of fp32, 8 of fp16 and bf16, and twice 16 of fp64. `refopt.gpu.rows` decides which elements
a thread accesses, and where one at a time.

Loads are ``ld.global``. The read-only path, ``ld.global.nc``, is for memory that nothing writes while the kernel runs;
here the thread that loads an element usually also stores it. Gradients are only read, but a launch reads each of them
once, so a cache in front of L2 gains nothing.
"""

from collections.abc import Callable
from types import FunctionType
from typing import Any, NamedTuple

import numpy as np

from refopt.gpu.machine import OLDEST
from refopt.gpu.patterns import narrow_bfloat16, widen_bfloat16
from refopt.gpu.target import device_function, intrinsic
from refopt.simt import memory

# What the L2 cache should do with a line: keep it longest, since the next launch reads it again, or evict it first, so
# that it displaces nothing that is read again. The numbers are results of the PTX instruction createpolicy; as
# constants they take no register.
POLICIES = {"keep": 0x14F0000000000000, "pass": 0x12F0000000000000}
SECOND = 128  # from a thread's first four elements of a row to its other four


class Format(NamedTuple):
    """How numbers of a dtype are stored.

    Attributes:
        memory: NumPy's type of a stored element; NumPy has no bf16, so its bits are read as an integer.
        ptx, letter: PTX's type of fp32 and fp64, and LLVM's letter for such a register, f or d.
        widen, widen_pair: for 16-bit types, the PTX that widens an element {h} to a number {x}, and the lower and upper
            half of a word {w} to {x} and {y}. It may use registers h, h0, h1 and z, which is 0.
        narrow: rounds {x} to nearest even, into {h}.
        narrow_before: the same for GPUs older than ``since``, which lack the instruction.
        widened, narrowed: the same in Python.
    """

    memory: Any
    ptx: str = ""
    letter: str = "f"
    widen: str = ""
    widen_pair: str = ""
    narrow: str = ""
    narrow_before: str = ""
    since: tuple[int, int] = OLDEST
    widened: Any = None
    narrowed: Any = None


FORMATS = {
    "float32": Format(np.float32, "f32", "f"),
    "float64": Format(np.float64, "f64", "d"),
    "float16": Format(
        np.float16, widen="cvt.f32.f16 {x}, {h}; ",
        widen_pair="mov.b32 {{h0, h1}}, {w}; cvt.f32.f16 {x}, h0; cvt.f32.f16 {y}, h1; ",
        narrow="cvt.rn.f16.f32 {h}, {x}; ", widened=np.float32, narrowed=np.float16,
    ),
    "bfloat16": Format(  # the upper half of an fp32, whose lower half is 0
        np.uint16, widen="mov.b32 {x}, {{z, {h}}}; ",
        widen_pair="shl.b32 {x}, {w}, 16; and.b32 {y}, {w}, 0xffff0000; ",
        narrow="cvt.rn.bf16.f32 {h}, {x}; ", since=(8, 0),
        # A carry out of the lower half rounds up: add 0x7fff, and 1 more if the upper half is odd. It could turn a NaN
        # into another number.
        narrow_before="{{ .reg .b32 n, o; .reg .b16 l; .reg .pred q; mov.b32 n, {x}; shr.u32 o, n, 16; "
        "and.b32 o, o, 1; add.u32 o, o, 0x7fff; add.u32 n, n, o; setp.nan.f32 q, {x}, {x}; "
        "selp.b32 n, 0x7fff0000, n, q; mov.b32 {{l, {h}}}, n; }} ",
        widened=widen_bfloat16, narrowed=narrow_bfloat16,
    ),
}


def _list(first: int, count: int) -> str:
    """Operands, as a vector if there are more than one."""
    names = ", ".join(f"${first + k}" for k in range(count))
    return f"{{{names}}}" if count > 1 else names


def _accessor(twin: Callable, what: str, dtype: str, count: int, asm: Callable[[str], str]) -> Callable:
    """A load or store with its PTX and name, such as ``load4_float32``; ``asm`` takes the PTX that narrows."""
    form = FORMATS[dtype]
    letters = form.letter * count
    outputs, inputs = ("", "l" + letters) if what == "store" else (letters, "l" if what == "load" else letters)
    twin.__name__ = twin.__qualname__ = f"{what}{count if count > 1 else ''}_{dtype}"
    constraints = ",".join([*(f"={x}" for x in outputs), *inputs])
    now, before = asm(form.narrow), asm(form.narrow_before)
    newer = form.narrow_before and now != before
    since, older = (form.since, before) if newer else (OLDEST, None)
    return intrinsic(now, constraints, outputs, inputs, since, older, lanes=True)(twin)


def _numbers(dtype: str, count: int) -> tuple[Callable, Callable]:
    """Load and store of ``count`` fp32 or fp64."""
    memory_type, ptx, *_ = FORMATS[dtype]

    def load(address):
        return memory.load(address, memory_type)[0] if count == 1 else memory.load(address, memory_type, count)

    def store(address, values):
        memory.store(address, memory_type, (values,) if count == 1 else values)

    vector = f".v{count}" if count > 1 else ""
    return (
        _accessor(load, "load", dtype, count, lambda _: f"ld.global{vector}.{ptx} {_list(0, count)}, [${count}];"),
        _accessor(store, "store", dtype, count, lambda _: f"st.global{vector}.{ptx} [$0], {_list(1, count)};"),
    )


ONE_HALF, TWO_WORDS = "{ .reg .b16 h, z; mov.b16 z, 0; ", "{ .reg .b32 w0, w1; .reg .b16 h0, h1, h2, h3; "


def _half(dtype: str) -> tuple[Callable, Callable, Callable]:
    """Load and store of an fp16 or bf16, and the rounding of a number that both together do."""
    form = FORMATS[dtype]
    memory_type, widened, narrowed = form.memory, form.widened, form.narrowed

    def load(address):
        return widened(memory.load(address, memory_type)[0])

    def store(address, value):
        memory.store(address, memory_type, (narrowed(value),))

    def rounded(value):
        return widened(narrowed(value))

    widen, place = form.widen.format(x="$0", h="h"), {"h": "h", "x": "$1"}
    stored, again = "st.global.b16 [$0], h; }", widen + "}"
    return (
        _accessor(load, "load", dtype, 1, lambda _: ONE_HALF + "ld.global.b16 h, [$1]; " + widen + "}"),
        _accessor(store, "store", dtype, 1, lambda narrow: ONE_HALF + narrow.format(**place) + stored),
        _accessor(rounded, "round", dtype, 1, lambda narrow: ONE_HALF + narrow.format(**place) + again),
    )


def _halves(dtype: str, count: int) -> tuple[Callable, Callable]:
    """Load and store of two or four fp16 or bf16, as one or two 32-bit words; the lower half of each comes first."""
    form = FORMATS[dtype]
    memory_type, widened, narrowed = form.memory, form.widened, form.narrowed

    def load(address):
        return tuple(widened(x) for x in memory.load(address, memory_type, count))

    def store(address, values):
        memory.store(address, memory_type, tuple(narrowed(x) for x in values))

    words = [f"w{k}" for k in range(count // 2)]
    vector, listed = ("v2.b32", "{w0, w1}") if count == 4 else ("b32", "w0")
    pairs = "".join(form.widen_pair.format(w=w, x=f"${2 * k}", y=f"${2 * k + 1}") for k, w in enumerate(words))
    packed = "".join(f"mov.b32 {w}, {{h{2 * k}, h{2 * k + 1}}}; " for k, w in enumerate(words))

    def storing(narrow: str) -> str:
        each = "".join(narrow.format(h=f"h{k}", x=f"${k + 1}") for k in range(count))
        return f"{TWO_WORDS}{each}{packed}st.global.{vector} [$0], {listed}; }}"

    loading = f"{TWO_WORDS}ld.global.{vector} {listed}, [${count}]; {pairs}}}"
    return _accessor(load, "load", dtype, count, lambda _: loading), _accessor(store, "store", dtype, count, storing)


load_float32, store_float32 = _numbers("float32", 1)
load4_float32, store4_float32 = _numbers("float32", 4)
load_float64, store_float64 = _numbers("float64", 1)
load2_float64, store2_float64 = _numbers("float64", 2)
load_float16, store_float16, round_float16 = _half("float16")
load2_float16, store2_float16 = _halves("float16", 2)
load4_float16, store4_float16 = _halves("float16", 4)
load_bfloat16, store_bfloat16, round_bfloat16 = _half("bfloat16")
load2_bfloat16, store2_bfloat16 = _halves("bfloat16", 2)
load4_bfloat16, store4_bfloat16 = _halves("bfloat16", 4)


@device_function
def load4_float64(address):
    return load2_float64(address) + load2_float64(address + 16)


@device_function
def store4_float64(address, values):
    store2_float64(address, values[:2])
    store2_float64(address + 16, values[2:])


def load_of(dtype: str) -> Callable:
    """The load of one element."""
    return globals()[f"load_{dtype}"]


def store_of(dtype: str) -> Callable:
    """The store of one element."""
    return globals()[f"store_{dtype}"]


def of_dtype(dtype: str, policy: str = "") -> tuple[Callable, Callable, Callable, Callable]:
    """The loads of one element and of four, and the stores. The load of four may have a policy for the L2 cache."""
    load4, store4 = globals()[f"load4_{dtype}"], globals()[f"store4_{dtype}"]
    if dtype != "float64":  # whose four elements are two loads
        load4 = with_policy(load4, policy)
    return load_of(dtype), load4, store_of(dtype), store4


def with_policy(load: Callable, policy: str) -> Callable:
    """A vector load with a cache policy, if one is given; it is a hint, omitted on GPUs before 8.0."""
    if not policy:
        return load
    plain, constraints, result, arguments = load.asm  # type: ignore[attr-defined]
    asm = plain.replace("ld.global.", "ld.global.L2::cache_hint.").replace("];", "], policy;")
    asm = f"{{ .reg .b64 policy; mov.b64 policy, {POLICIES[policy]:#x}; {asm} }}"
    twin = FunctionType(load.__code__, load.__globals__, f"{load.__name__}_{policy}", None, load.__closure__)
    return intrinsic(asm, constraints, result, arguments, (8, 0), plain, True)(twin)
