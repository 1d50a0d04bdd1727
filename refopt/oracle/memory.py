"""Arrays placed in memory: with any order of axes, any address, gaps between elements, and guards around them."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

GUARD = 64  # bytes on either side, of a pattern that a stray store would change
PATTERN = 0x3F  # a byte that makes numbers near 1 in every dtype but fp64, so that a step changes them


class Placed(NamedTuple):
    """An array as a view of a larger one. ``strides`` and ``offset`` count elements."""

    whole: np.ndarray  # of one axis
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int

    def view(self) -> np.ndarray:
        """The view, which shares memory."""
        size = self.whole.itemsize
        strides = [size * stride for stride in self.strides]
        data = self.whole.view(np.uint8).data  # the buffer protocol does not know bf16
        return np.ndarray(self.shape, self.whole.dtype, data, self.offset * size, strides)

    def copy(self) -> "Placed":
        """A copy with its own memory."""
        return self._replace(whole=self.whole.copy())

    def around(self, whole: np.ndarray) -> np.ndarray:
        """The bytes outside of the view in ``whole``, an array of the same size as its own."""
        mine = np.zeros(whole.size, bool)
        if 0 not in self.shape:
            Placed(mine, self.shape, self.strides, self.offset).view()[...] = True
        return whole.view(np.uint8).reshape(whole.size, whole.itemsize)[~mine]


def dense(x: np.ndarray) -> Placed:
    """An array alone in its memory, in C order."""
    return Placed(np.ascontiguousarray(x).reshape(-1).copy(), x.shape, _strides(x.shape), 0)


def fortran(x: np.ndarray) -> Placed:
    """The axes in the other order."""
    return _filled(x, _strides(x.shape[::-1])[::-1], x.size, 0)


def guarded(x: np.ndarray, shift: int = 1, behind: int = GUARD) -> Placed:
    """Between guards, ``shift`` elements off an aligned address, with the axes of a dense array in their order.

    ``behind`` has the bytes of the second guard.
    """
    first, room = GUARD // x.itemsize + shift, behind // x.itemsize
    return _filled(x, tuple(stride // x.itemsize for stride in x.strides), first + x.size + room, first)


def gapped(x: np.ndarray) -> Placed:
    """Every other element along the last axis, as in a slice; between guards."""
    room = GUARD // x.itemsize
    return _filled(x, tuple(2 * stride for stride in _strides(x.shape)), 2 * room + 2 * x.size, room)


def columns(x: np.ndarray) -> Placed:
    """The first columns of a wider matrix, if there are two axes or more; otherwise as `gapped`."""
    if x.ndim < 2:
        return gapped(x)
    wider = (*x.shape[:-1], x.shape[-1] + 3)
    room = GUARD // x.itemsize
    return _filled(x, _strides(wider), 2 * room + int(np.prod(wider)), room)


LAYOUTS = {
    "axes in another order": fortran, "every other element": gapped, "columns of a wider matrix": columns,
    "an element off alignment": guarded,
}


def spread(x: np.ndarray) -> Placed:
    """One number for all elements, as with ``expand`` and ``broadcast_to``. Only for arrays that are not written."""
    return Placed(np.ravel(x)[:1].copy(), x.shape, (0,) * x.ndim, 0)


def soiled(shapes: Sequence[tuple[int, ...]], real: Any, k: int) -> None:
    """Leave numbers in freed memory, to expose code that reads memory it has not written."""
    for shape in shapes:
        kept = [np.full(shape, 1000 + k, real) for _ in range(8)]
        del kept


def _filled(x: np.ndarray, strides: tuple[int, ...], size: int, offset: int) -> Placed:
    whole = np.full(size * x.itemsize, PATTERN, np.uint8).view(x.dtype)
    placed = Placed(whole, x.shape, strides, offset)
    if x.size:
        placed.view()[...] = x
    return placed


def _strides(shape: tuple[int, ...]) -> tuple[int, ...]:
    """The strides of C order, in elements."""
    strides = [1]
    for length in shape[:0:-1]:
        strides.append(strides[-1] * max(length, 1))
    return tuple(strides[::-1]) if shape else ()


def into(arrays: Any, placed: Placed) -> tuple[Any, Any]:
    """The whole array and the view in a library; libraries that do not write in place get copies."""
    whole = arrays.of(placed.whole)
    if hasattr(whole, "as_strided"):  # of PyTorch
        return whole, whole.as_strided(placed.shape, placed.strides, placed.offset)
    if isinstance(whole, np.ndarray):
        return whole, Placed(whole, *placed[1:]).view()
    if type(whole).__module__.partition(".")[0] == "cupy":
        part = whole[placed.offset :]
        strides = [whole.itemsize * stride for stride in placed.strides]
        return whole, type(whole)(placed.shape, whole.dtype, part.data, strides)
    return None, arrays.of(placed.view())
