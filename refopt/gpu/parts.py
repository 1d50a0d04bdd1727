"""Parts for your own merged kernels: every tensor of a model in one launch, with the same bits as NumPy.

A `Table` has the addresses of the tensors and cuts them into chunks, one for each block. The warps of a block take the
rows of its chunk in turn (`rows`), 256 elements at a time. A thread has eight of them: it loads them to a local array,
computes in a loop, and stores them (`access`). `refopt.gpu.cuda` replaces ``numba.cuda`` in such kernels.

A running average of parameters, for any number of tensors:

    >>> import numpy as np
    >>> from refopt import gpu
    >>> from refopt.gpu import cuda, parts
    >>> one = np.float32(1)
    >>> @parts.device_function
    ... def blend(average, param, decay):
    ...     return decay * average + (one - decay) * param
    >>> load, store = parts.access("float32")
    >>> @parts.rows
    ... @parts.device_function
    ... def update(addresses, tensor, i, stop, whole, decay):
    ...     x = cuda.local.array((2, 8), np.float32)
    ...     for a in range(2):
    ...         load(addresses[a, tensor], i, stop, whole, x, a)
    ...     for e in range(8):
    ...         x[0, e] = blend(x[0, e], x[1, e], decay)
    ...     store(addresses[0, tensor], i, stop, whole, x, 0)
    >>> @cuda.jit(launch_bounds=(64, 16))
    ... def ema(addresses, chunks, decay):
    ...     update(addresses, chunks, cuda.blockIdx.x, decay)
    >>> with gpu.use("executor"):
    ...     averages, params = ([gpu.to_device(np.full(n, x, np.float32)) for n in (3, 300)] for x in (0, 1))
    >>> parts.Table(averages, params).launch(ema, np.float32(0.75))()
    >>> averages[0].copy_to_host()
    array([0.25, 0.25, 0.25], dtype=float32)
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from refopt.checks import Array
from refopt.checks.arguments import chosen, flag, listed, whole
from refopt.checks.arrays import check_like
from refopt.checks.dtypes import ACCESSES, SIZES
from refopt.cpu.reduce import TILE
from refopt.gpu import rows as rows_of_warps
from refopt.gpu import tables
from refopt.gpu.arrays import describer, device_of_lists
from refopt.gpu.cuda import Kernel, Launch
from refopt.gpu.instructions import sqrt
from refopt.gpu.rows import PARTIAL, ROW, WHOLE, Access, of_warp, own
from refopt.gpu.runtime import device
from refopt.gpu.tables import ALIGNED, ARRIVALS, NODE, SLOT, START, STOP, TENSOR
from refopt.gpu.target import argument_spelled, device_function
from refopt.gpu.tiles import joiner, lane_tree, rows_of

__all__ = [
    "ALIGNED", "ARRIVALS", "NODE", "ROW", "SLOT", "START", "STOP", "TENSOR", "TILE", "Access", "Launch", "Table",
    "access", "device_function", "joiner", "lane_tree", "rows", "rows_of", "sqrt",
]


class Table:
    """The addresses of a kernel's tensors and the chunks that they are cut into, on the machine of the tensors.

    The table keeps the arrays alive; their memory must not move. Arrays that a kernel writes must be writable and
    must not overlap others, which is not checked.

    Attributes:
        addresses: (L, P) int64, the byte address of each tensor by list and tensor.
        chunks: (C, 6) int64. Columns: `TENSOR`; `START` and `STOP`, the first element and the last + 1; `SLOT`, the
            place of the sum of its first tile; `NODE`, which counts the chunk; `ALIGNED`, whether all arrays of the
            tensor can be accessed four elements at a time. A tensor without elements has no chunk.
        nodes, counters, slots: of the tree that joins the sums of tiles, as `joiner` takes them: (N, 5) int64; (N,)
            uint32, all 0; and the number of sums in a row.
        count: C, the number of chunks.
        dtypes: of the lists, by name.
    """

    def __init__(self, *lists: Sequence[Any], tiles: int = 2) -> None:
        """Check the arrays, lay out the tables and upload them.

        Args:
            lists: of device arrays, such as averages and parameters. The arrays of a list have one floating-point
                dtype; those of a tensor have one shape and one order of axes, without gaps.
            tiles: of `TILE` elements in a chunk, a power of two up to 1024.

        Raises:
            TypeError, ValueError: an array is unsuitable or on another machine; the message names list and index.
        """
        machine = device(device_of_lists(*lists))
        tiles = whole("Table: tiles", tiles, 1, 1024)
        if tiles & (tiles - 1):
            raise ValueError(f"Table: tiles: expected a power of two, got {tiles}")
        rows = _described(lists, describer(machine.name))
        addresses = np.array([[x.address for x in row] for row in rows], np.int64)
        units = np.array([[ACCESSES[x.dtype] for x in row] for row in rows])
        aligned = (addresses % units == 0).all(0).tolist()
        host = tables.build([x.size for x in rows[0]], aligned, tiles)
        self.addresses, self.chunks, self.nodes = map(machine.to_device, (addresses, host.chunks, host.nodes))
        self.counters = machine.to_device(np.zeros(len(host.nodes), np.uint32))
        self.slots, self.count = host.slots, len(host.chunks)
        self.dtypes = tuple(row[0].dtype if row else None for row in rows)
        self._machine, self._keep = machine, [list(values) for values in lists]

    def launch(self, kernel: Kernel, *args: Any, block: int | None = None, cooperative: bool = False) -> Launch:
        """The launch of ``kernel(addresses, chunks, *args)``, with a block for each chunk.

        Args:
            kernel: of ``refopt.gpu.cuda.jit``.
            args: device arrays in C order, integers, and numbers of type ``np.float32``.
            block: threads of a block, a multiple of 32; if not given, as many as the launch bounds allow, or 64.
            cooperative: whether blocks wait for each other, by ``cuda.cg.this_grid().sync()``. The grid is then at most
                as large as can be resident at once, and each block must take chunks in turn.

        Raises:
            TypeError, ValueError: an argument is unsuitable for the kernel; the message names it.
        """
        if not isinstance(kernel, Kernel):
            raise TypeError(f"launch: kernel: expected one of refopt.gpu.cuda.jit, got {type(kernel).__name__}")
        most = kernel.launch_bounds[0] if kernel.launch_bounds else 1024
        block = (most if kernel.launch_bounds else 64) if block is None else whole("launch: block", block, 32, most)
        if block % 32:
            raise ValueError(f"launch: block: expected a multiple of 32, got {block}")
        if len(args) != (takes := kernel.function.__code__.co_argcount - 2):
            raise TypeError(f"launch: args: expected {takes}, as {kernel.name} takes, got {len(args)}")
        for k, arg in enumerate(args):
            argument_spelled(f"launch: args[{k}]", arg)
        grid, args = self.count, (self.addresses, self.chunks, *args)
        if flag("launch: cooperative", cooperative) and grid:
            grid = self._machine.resident(kernel, block, args, grid)
        return Launch(kernel, grid, block, args, "cooperative" if cooperative else "", self)


def _described(lists: Sequence[Sequence[Any]], describe: Callable) -> list[list[Array]]:
    """The arrays of each list, checked."""
    if not lists:
        raise TypeError("Table: lists: expected at least one list of arrays, got none")
    rows: list[list[Array]] = []
    for k, values in enumerate(lists):
        where = f"Table: lists[{k}]"
        rows.append(row := [describe(x, f"{where}[{i}]") for i, x in enumerate(listed(where, values))])
        if len(row) != len(rows[0]):
            raise ValueError(f"{where}: expected {len(rows[0])} arrays, as in lists[0], got {len(row)}")
        for i, (array, first) in enumerate(zip(row, rows[0], strict=True)):
            if array.dtype not in SIZES or array.dtype != row[0].dtype:
                expected = row[0].dtype if i else " or ".join(SIZES)
                raise TypeError(f"{where}[{i}]: expected {expected}, got {array.dtype}")
            check_like(f"{where}[{i}]", array, first, f"lists[0][{i}]")
    return rows


def access(dtype: str, real: type = np.float32) -> Access:
    """How a thread loads and stores its eight elements of a row, as numbers of the arithmetic type.

    They are elements i to i + 3 and i + 128 to i + 131, so that a warp's accesses are contiguous. Loads widen 16-bit
    types, and stores round to nearest even.

    Args:
        dtype: of the array: float16, bfloat16, float32, float64.
        real: the arithmetic type, ``np.float32`` or ``np.float64``, at least as wide as the dtype.

    Returns:
        ``load(address, i, stop, whole, x, a)`` and ``store`` with the same arguments, for kernels. The elements are
        x[a, 0:8] of a local array. If ``whole``, which is faster, all eight must exist, and the address must be a
        multiple of four elements or of 16 bytes, whichever is smaller; if not, elements from ``stop`` on are loaded as
        0 and not stored.
    """
    name = chosen("access: dtype", dtype, SIZES)
    if real not in (np.float32, np.float64) or SIZES[name] > np.dtype(real).itemsize:
        raise ValueError(f"access: real: expected np.float32 or np.float64, no narrower than {name}, got {real!r}")
    return rows_of_warps.access(name, real)


def rows(row: Callable) -> Callable:
    """For kernels: a device function that processes all rows of chunk number c: ``(addresses, chunks, c, k)``.

    Args:
        row: a device function ``(addresses, tensor, i, stop, whole, k)`` for a thread's eight elements of a row, from i
            on. ``whole`` is for `access`: whether the row is complete and all arrays of the tensor are aligned. k is
            what all elements share: a number, or a tuple.
    """

    @device_function
    def over_rows(addresses, chunks, c, k):
        tensor, start, stop = chunks[c, TENSOR], chunks[c, START], chunks[c, STOP]
        for first in of_warp(start, stop, ROW):
            if chunks[c, ALIGNED] and first + ROW <= stop:
                row(addresses, tensor, own(first), stop, WHOLE, k)
            else:
                row(addresses, tensor, own(first), stop, PARTIAL, k)

    return over_rows
