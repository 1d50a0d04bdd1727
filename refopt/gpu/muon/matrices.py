"""Where the matrices of Muon are: those of the parameters, in their memory order, and those of the iterations.

A matrix is used in its memory order: ``outer`` rows of ``inner`` elements, which are contiguous unless the matrix is a
block of experts whose axis is the innermost. For a parameter in Fortran order this is the transpose of the matrix that
the parameter is cut into. Iterating the transpose gives the transposed result, so nothing is copied: the smaller of the
two squares is X X^T if ``left`` is true, else X^T X.
"""

from collections.abc import Iterator
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from refopt.checks.dtypes import SIZES
from refopt.cpu.blocks import Cut
from refopt.gpu.cuda import address
from refopt.gpu.products import Product, padded
from refopt.gpu.runtime import Device

# Columns of the table of matrices.
OF_TENSOR, OFFSET, INNER, OUTER_STRIDE, INNER_STRIDE, LOOKAHEAD, FIRST_X, LAST_X = range(8)


class Matrix(NamedTuple):
    """A matrix in the memory of parameter number ``tensor``: first element, sizes and strides, in elements.

    ``rows`` and ``columns`` are those of the matrix that the parameter is cut into.
    """

    tensor: int
    offset: int
    outer: int
    inner: int
    outer_stride: int
    inner_stride: int
    rows: int
    columns: int
    left: bool

    @property
    def size(self) -> int:
        return self.outer * self.inner

    @property
    def small(self) -> int:
        """The smaller of both sizes."""
        return min(self.outer, self.inner)

    def regular(self) -> bool:
        """Whether its elements are contiguous, and aligned for vectors of four, in the parameter and the iterations."""
        dense = self.inner_stride == 1 and (self.outer_stride == self.inner or self.outer == 1)
        return dense and self.offset % 4 == 0 and self.inner % 8 == 0


def matrices_of(tensor: int, cut: Cut) -> Iterator[Matrix]:
    """The matrices of a parameter that have elements."""
    stand_in = np.empty(int(np.prod(cut.shape, dtype=np.int64)), np.int8)  # its memory is never touched
    start = stand_in.__array_interface__["data"][0]
    for view in cut.matrices(stand_in):
        if not view.size:
            continue
        offset, (rows, columns), (down, right) = view.__array_interface__["data"][0] - start, view.shape, view.strides
        by_rows = rows == 1 or (columns > 1 and down >= right)
        outward, inward = ((rows, down), (columns, right)) if by_rows else ((columns, right), (rows, down))
        strides = outward[1], inward[1] if inward[0] > 1 else 1
        left = (rows <= columns) == by_rows
        yield Matrix(tensor, offset, outward[0], inward[0], *strides, rows, columns, left)


class Workspace:
    """The memory of the iterations, on a device: for each matrix its lookahead, x twice, A and B.

    Lookaheads have the arithmetic type and are in memory order. The others have the dtype of the iterations and are
    `padded`, and their padding stays zero. 16-bit matrices are arrays of uint16.
    """

    def __init__(self, machine: Device, matrices: list[Matrix], compute: str, real: Any) -> None:
        self.matrices = matrices
        sizes = [padded(m.outer) * padded(m.inner) for m in matrices]
        squares = [padded(m.small) ** 2 for m in matrices]
        starts = np.cumsum([0, *sizes, *sizes, *squares, *squares])
        firsts = np.cumsum([0, *(padded(m.size) for m in matrices)])
        size, wide_size = SIZES[compute], np.dtype(real).itemsize
        self.lookaheads = machine.empty((int(firsts[-1]),), real)
        self.memory = machine.to_device(np.zeros(int(starts[-1]), np.uint16 if size == 2 else compute))
        base, wide = address(self.memory), address(self.lookaheads)
        self._places = (base + size * starts[:-1]).reshape(4, -1).tolist()
        self.mapped = machine.warpgroups and size == 2
        self._machine: Any = machine
        self._lookaheads = (wide + wide_size * firsts[:-1]).tolist()

    @cached_property
    def _maps(self) -> list[list[int]]:
        """Addresses of the matrices' tensor maps, in the order of `_places`."""
        whole, square = ([(*sizes, padded(sizes[1])) for sizes in of] for of in (
            [(m.outer, m.inner) for m in self.matrices], [(m.small, m.small) for m in self.matrices]))
        addresses = [address for of in self._places for address in of]
        self._kept = self._machine.tensor_maps(addresses, [*whole, *whole, *square, *square])
        return (address(self._kept) + 128 * np.arange(len(addresses))).reshape(4, -1).tolist()

    def table(self, iterations: int) -> np.ndarray:
        """The table of matrices, a row for each, with the columns above; x moves between two addresses."""
        x = self._places
        rows = [(m.tensor, m.offset, m.inner, m.outer_stride, m.inner_stride, self._lookaheads[i], x[0][i],
                 x[iterations % 2][i]) for i, m in enumerate(self.matrices)]
        return np.array(rows, np.int64).reshape(-1, 8)

    def products(self, n: int, mapped: bool = False) -> list[list[Product]]:
        """The three products of iteration n of every matrix: A = x x^T, B = b A + c (A A), x = a x + B x.

        They have the addresses of the matrices or, if ``mapped``, of their tensor maps.
        """
        places = self._maps if mapped else self._places
        old, new = places[n % 2], places[(n + 1) % 2]
        three: list[list[Product]] = [[], [], []]
        for i, (m, square, polynomial) in enumerate(zip(self.matrices, *places[2:], strict=True)):
            small, x = m.small, old[i]
            three[0].append(Product(x, x, square, 0, small, small, m.size // small, not m.left))
            three[1].append(Product(square, square, polynomial, square, small, small, small))
            left, right = (polynomial, x) if m.left else (x, polynomial)
            three[2].append(Product(left, right, new[i], x, m.outer, m.inner, small))
        return three


def uploaded(machine: Device, table: Any, dtype: Any = np.int64) -> Any:
    """A table on the device."""
    return machine.to_device(np.ascontiguousarray(table, dtype))
