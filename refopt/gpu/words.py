"""Raw words: bytes that are moved and never looked at, so that every bit arrives, NaN payloads included.

Every load and store here is inline PTX; its body is what the executor runs instead. Words of 8 bytes and less
are integers, those of 16 a pair of fp64 registers, which are as good as any as long as nothing is computed.
"""

from collections.abc import Callable

import numpy as np

from refopt.gpu.tables import START, STOP, TENSOR
from refopt.gpu.target import cuda, device_function, intrinsic, kernel
from refopt.simt import memory

BOUNDS = 64, 16  # threads of a block, and blocks to fit on a multiprocessor
ROW = 2048  # bytes that a warp moves at a time, four words of 16 a thread
FILL = 16384  # bytes that a block fills


@intrinsic("ld.global.v2.f64 {$0, $1}, [$2];", "=d,=d,l", "dd", "l")
def load16(address):
    return memory.load(address, np.uint64, 2)


@intrinsic("st.global.v2.f64 [$0], {$1, $2};", "l,d,d", "", "ldd")
def store16(address, words):
    memory.store(address, np.uint64, words)


@intrinsic("ld.global.b64 $0, [$1];", "=l,l", "l", "l")
def load8(address):
    return memory.load(address, np.int64)[0]


@intrinsic("st.global.b64 [$0], $1;", "l,l", "", "ll")
def store8(address, word):
    memory.store(address, np.int64, (word,))


@intrinsic("{ .reg .b32 w; ld.global.b32 w, [$1]; cvt.u64.u32 $0, w; }", "=l,l", "l", "l")
def load4(address):
    return memory.load(address, np.uint32)[0]


@intrinsic("{ .reg .b32 w; cvt.u32.u64 w, $1; st.global.b32 [$0], w; }", "l,l", "", "ll")
def store4(address, word):
    memory.store(address, np.uint32, (word,))


@intrinsic("{ .reg .b16 w; ld.global.b16 w, [$1]; cvt.u64.u16 $0, w; }", "=l,l", "l", "l")
def load2(address):
    return memory.load(address, np.uint16)[0]


@intrinsic("{ .reg .b16 w; cvt.u16.u64 w, $1; st.global.b16 [$0], w; }", "l,l", "", "ll")
def store2(address, word):
    memory.store(address, np.uint16, (word,))


@intrinsic("{ .reg .b16 w; ld.global.u8 w, [$1]; cvt.u64.u16 $0, w; }", "=l,l", "l", "l")
def load1(address):
    return memory.load(address, np.uint8)[0]


@intrinsic("{ .reg .b16 w; cvt.u16.u64 w, $1; st.global.u8 [$0], w; }", "l,l", "", "ll")
def store1(address, word):
    memory.store(address, np.uint8, (word,))


@device_function
def move_row(source, target, at):
    """A whole row, with all its loads under way at a time."""
    source, target = source + at, target + at
    a, b, c, d = load16(source), load16(source + 512), load16(source + 1024), load16(source + 1536)
    store16(target, a)
    store16(target + 512, b)
    store16(target + 1024, c)
    store16(target + 1536, d)


def _mover(width: int, load: Callable, store: Callable) -> Callable:
    """``move(source, target, first, stop)``: bytes of a row by a warp, in words, and what is left one by one."""

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
    """Bytes of a row, in the widest words that both addresses are aligned to."""
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
    """Fill so many bytes, from an aligned address on, with a word of 8 that holds an item over and over."""
    first = cuda.blockIdx.x * FILL
    for i in range(first + 8 * cuda.threadIdx.x, min(first + FILL, size), 8 * cuda.blockDim.x):
        if i + 8 <= size:
            store8(address + i, word)
        else:
            for k in range(size - i):
                store1(address + i + k, word >> 8 * k & 255)
