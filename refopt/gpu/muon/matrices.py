"""Where the matrices of Muon are: those of the parameters, in their memory order, and those of the iterations.

A matrix is used in its memory order: ``outer`` rows of ``inner`` elements, which are contiguous unless the matrix is a
block of experts whose axis is the innermost. For a parameter in Fortran order this is the transpose of the matrix that
the parameter is cut into. Iterating the transpose gives the transposed result, so nothing is copied: the smaller of the
two squares is X X^T if ``left`` is true, else X^T X.
"""

from collections.abc import Iterable, Iterator, Mapping
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

    ``rows`` and ``columns`` are those of the matrix that the parameter is cut into. In a state by row, ``first`` is the
    place of its first row's number, and ``apart`` the distance to the next.
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
    first: int = 0
    apart: int = 1

    @property
    def size(self) -> int:
        return self.outer * self.inner

    @property
    def small(self) -> int:
        """The smaller of both sizes."""
        return min(self.outer, self.inner)

    @property
    def by_rows(self) -> bool:
        """Whether its rows are those of its memory order."""
        return self.left == (self.rows <= self.columns)

    def regular(self) -> bool:
        """Whether its elements are contiguous, and aligned for vectors of four, in the parameter and the iterations."""
        dense = self.inner_stride == 1 and (self.outer_stride == self.inner or self.outer == 1)
        return dense and self.offset % 4 == 0 and self.inner % 8 == 0


def matrices_of(tensor: int, cut: Cut) -> Iterator[Matrix]:
    """The matrices of a parameter that have elements."""
    stand_in = np.empty(int(np.prod(cut.shape, dtype=np.int64)), np.int8)  # its memory is never touched
    start = stand_in.__array_interface__["data"][0]
    numbers = np.empty(sum(view.shape[0] for view in cut.matrices(stand_in)), np.int8)
    first_number = numbers.__array_interface__["data"][0]
    for view, own in zip(cut.matrices(stand_in), cut.by_row(numbers), strict=True):
        if not view.size:
            continue
        offset, (rows, columns), (down, right) = view.__array_interface__["data"][0] - start, view.shape, view.strides
        by_rows = rows == 1 or (columns > 1 and down >= right)
        outward, inward = ((rows, down), (columns, right)) if by_rows else ((columns, right), (rows, down))
        strides = outward[1], inward[1] if inward[0] > 1 else 1
        left = (rows <= columns) == by_rows
        first = own.__array_interface__["data"][0] - first_number
        yield Matrix(tensor, offset, outward[0], inward[0], *strides, rows, columns, left, first, own.strides[0])


class Operation(NamedTuple):
    """A product of matrices of the iterations, by name: out = a b, plus another one if there is one to add.

    It is one of all matrices that are iterated by Gram matrices, or of all others.
    """

    gram: bool
    a: str
    b: str
    out: str
    added: str = ""

    @property
    def kind(self) -> tuple[bool, bool, bool]:
        """As of a product's kernel: whether it is X X^T, and symmetric, and adds."""
        return self.a in XS, self.out not in XS, bool(self.added)


# The matrices of the iterations: x at two places by turns, and squares of the smaller size. The standard iteration has
# A and B, which is P; others also have three for Z and Q by turns, of which P is one, and T.
XS = "x", "y"
STANDARD = "A", "P"
GRAM = *STANDARD, "Q", "S", "T"


class Workspace:
    """The memory of the iterations, on a device: for each matrix its lookahead, x at two places, and its squares.

    Lookaheads have the arithmetic type and are in memory order. The others have the dtype of the iterations and are
    `padded`, and their padding stays zero. 16-bit matrices are arrays of uint16. ``gram`` says of each matrix whether
    it is iterated by Gram matrices.
    """

    def __init__(self, machine: Device, matrices: list[Matrix], compute: str, real: Any, gram: list[bool]) -> None:
        self.matrices, self.gram = matrices, gram
        self._sizes = {(name, i): (m.outer, m.inner) for name in XS for i, m in enumerate(matrices)}
        self._sizes |= {(name, i): (m.small, m.small) for name in GRAM for i, m in enumerate(matrices)
                        if gram[i] or name in STANDARD}
        starts = np.cumsum([0, *(padded(rows) * padded(columns) for rows, columns in self._sizes.values())])
        firsts = np.cumsum([0, *(padded(m.size) for m in matrices)])
        size, wide_size = SIZES[compute], np.dtype(real).itemsize
        self.lookaheads = machine.empty((int(firsts[-1]),), real)
        self.memory = machine.to_device(np.zeros(int(starts[-1]), np.uint16 if size == 2 else compute))
        base, wide = address(self.memory), address(self.lookaheads)
        self.places = dict(zip(self._sizes, (base + size * starts[:-1]).tolist(), strict=True))
        self.mapped = machine.warpgroups and size == 2
        self._machine: Any = machine
        self._lookaheads = (wide + wide_size * firsts[:-1]).tolist()

    @cached_property
    def _maps(self) -> dict[tuple[str, int], int]:
        """Addresses of the matrices' tensor maps."""
        sizes = [(*of, padded(of[1])) for of in self._sizes.values()]
        self._kept = self._machine.tensor_maps([*self.places.values()], sizes)
        return {key: address(self._kept) + 128 * k for k, key in enumerate(self.places)}

    def table(self, last: Mapping[bool, str]) -> np.ndarray:
        """The table of matrices, a row for each, with the columns above; ``last`` is where x is in the end."""
        rows = [(m.tensor, m.offset, m.inner, m.outer_stride, m.inner_stride, self._lookaheads[i],
                 self.places["x", i], self.places[last[self.gram[i]], i]) for i, m in enumerate(self.matrices)]
        return np.array(rows, np.int64).reshape(-1, 8)

    def products(self, operations: Iterable[Operation], mapped: bool = False) -> list[Product]:
        """The products of operations of one kind, with addresses of matrices or, if ``mapped``, of tensor maps."""
        at = self._maps if mapped else self.places
        made = []
        for a_gram, *names in operations:
            for i, m in enumerate(self.matrices):
                if self.gram[i] == a_gram:
                    a, b, out, added = (at[name, i] if name else 0 for name in names)
                    small = m.small
                    if names[0] in XS:
                        made.append(Product(a, b, out, added, small, small, m.size // small, not m.left))
                    elif names[2] in XS:
                        a, b = (a, b) if m.left else (b, a)
                        made.append(Product(a, b, out, added, m.outer, m.inner, small))
                    else:
                        made.append(Product(a, b, out, added, small, small, small))
        return made


def uploaded(machine: Device, table: Any, dtype: Any = np.int64) -> Any:
    """A table on the device."""
    return machine.to_device(np.ascontiguousarray(table, dtype))
