"""Raw words: bytes that are moved and never interpreted, so that every bit arrives, NaN payloads included.

Every load and store here is inline PTX; the executor runs its body instead. Words of up to 8 bytes are integers, those
of 16 a pair of fp64 registers, which preserve any bits as long as nothing is computed. A warp moves rows of 2048 bytes:
lane t has bytes 16 t to 16 t + 15 of each quarter.
"""

from collections.abc import Callable
from typing import Any

import numpy as np

from refopt.gpu.kernels import kernel
from refopt.gpu.tables import START, STOP, TENSOR
from refopt.gpu.target import cuda, device_function, intrinsic
from refopt.simt import memory

BOUNDS = 64, 16  # threads of a block, and blocks that must fit on a multiprocessor
ROW = 2048  # bytes that a warp moves at a time: each thread four words of 16
FILL = 16384  # bytes that a block fills


@intrinsic("ld.global.v2.f64 {$0, $1}, [$2];", "=d,=d,l", "dd", "l", lanes=True)
def load16(address):
    return memory.load(address, np.uint64, 2)


@intrinsic("st.global.v2.f64 [$0], {$1, $2};", "l,d,d", "", "ldd", lanes=True)
def store16(address, words):
    memory.store(address, np.uint64, words)


def _word(size: int, ptx: str, memory_type: Any) -> tuple[Callable, Callable]:
    """Load and store of a word of 8, 4, 2 or 1 bytes, which a thread has as a 64-bit integer.

    A byte passes through a register of 16 bits, the smallest that exists.
    """
    bits = max(8 * size, 16)
    widen, narrow = f"cvt.u64.u{bits} $0, w; ", f"cvt.u{bits}.u64 w, $1; "
    if size == 8:
        widen, narrow = "mov.b64 $0, w; ", "mov.b64 w, $1; "

    @intrinsic(f"{{ .reg .b{bits} w; ld.global.{ptx} w, [$1]; {widen}}}", "=l,l", "l", "l", lanes=True)
    def load(address):
        return memory.load(address, memory_type)[0]

    @intrinsic(f"{{ .reg .b{bits} w; {narrow}st.global.{ptx} [$0], w; }}", "l,l", "", "ll", lanes=True)
    def store(address, word):
        memory.store(address, memory_type, (word,))

    load.__name__, store.__name__ = f"load{size}", f"store{size}"
    return load, store


load8, store8 = _word(8, "b64", np.int64)
load4, store4 = _word(4, "b32", np.uint32)
load2, store2 = _word(2, "b16", np.uint16)
load1, store1 = _word(1, "u8", np.uint8)


@device_function
def move_row(source, target, i):
    """Move a thread's part of a whole row, from byte ``i`` on, with all its loads in flight at once."""
    source, target = source + i, target + i
    a, b, c, d = load16(source), load16(source + 512), load16(source + 1024), load16(source + 1536)
    store16(target, a)
    store16(target + 512, b)
    store16(target + 1024, c)
    store16(target + 1536, d)


def _mover(width: int, load: Callable, store: Callable) -> Callable:
    """``move(source, target, first, stop)``: a warp moves bytes of a row in words, and the remaining ones singly."""

    @device_function
    def move(source, target, first, stop):
        lane = cuda.threadIdx.x % 32
        end = first + (stop - first) // width * width
        for i in range(first + width * lane, end, 32 * width):
            store(target + i, load(source + i))
        if end + lane < stop:
            store1(target + end + lane, load1(source + end + lane))

    return move


move16, move8 = _mover(16, load16, store16), _mover(8, load8, store8)
move4, move2, move1 = _mover(4, load4, store4), _mover(2, load2, store2), _mover(1, load1, store1)


@device_function
def move_bytes(source, target, first, stop):
    """Move bytes of a row, in the widest words to which both addresses are aligned."""
    odd = (source | target) % 16
    if odd == 0:
        move16(source, target, first, stop)
    elif odd % 8 == 0:
        move8(source, target, first, stop)
    elif odd % 4 == 0:
        move4(source, target, first, stop)
    elif odd % 2 == 0:
        move2(source, target, first, stop)
    else:
        move1(source, target, first, stop)


@kernel(BOUNDS)
def merged_move(addresses, chunks):
    """Move the bytes of every pair; sizes in the tables are in bytes."""
    c = cuda.blockIdx.x
    tensor, start, stop = chunks[c, TENSOR], chunks[c, START], chunks[c, STOP]
    source, target = addresses[0, tensor], addresses[1, tensor]
    for first in range(start + cuda.threadIdx.x // 32 * ROW, stop, cuda.blockDim.x // 32 * ROW):
        if first + ROW <= stop and (source | target) % 16 == 0:
            move_row(source, target, first + 16 * (cuda.threadIdx.x % 32))
        else:
            move_bytes(source, target, first, min(first + ROW, stop))


@kernel(BOUNDS)
def fill(address, size, word):
    """Fill ``size`` bytes, from an aligned address on, with an 8-byte word that repeats an item."""
    first = cuda.blockIdx.x * FILL
    for i in range(first + 8 * cuda.threadIdx.x, min(first + FILL, size), 8 * cuda.blockDim.x):
        if i + 8 <= size:
            store8(address + i, word)
        else:
            for n in range(size - i):
                store1(address + i + n, word >> 8 * n & 255)
