"""Arrays that the oracle places: where each lies, in which memory, and what is around it."""

import numpy as np
import pytest

from refopt.oracle.memory import GUARD, LAYOUTS, PATTERN, columns, dense, fortran, gapped, guarded, spread

X = np.arange(6, dtype=np.float32).reshape(2, 3)
ROOM = 16  # elements of fp32 in 64 bytes


@pytest.mark.parametrize(("place", "size", "strides", "offset"), [
    (dense, 6, (3, 1), 0), (fortran, 6, (1, 2), 0), (guarded, 2 * ROOM + 1 + 6, (3, 1), ROOM + 1),
    (gapped, 2 * ROOM + 12, (6, 2), ROOM), (columns, 2 * ROOM + 12, (6, 1), ROOM)])
def test_a_layout(place, size, strides, offset):
    placed = place(X)
    assert (placed.whole.size, placed.shape, placed.strides, placed.offset) == (size, X.shape, strides, offset)
    assert placed.view().tolist() == X.tolist() and np.shares_memory(placed.view(), placed.whole)
    assert not np.shares_memory(placed.copy().view(), placed.view())
    around = placed.around(placed.whole)
    assert around.shape == (size - X.size, 4) and (around == PATTERN).all()


def test_other_layouts():
    assert GUARD == 4 * ROOM and list(LAYOUTS.values()) == [fortran, gapped, columns, guarded]
    assert guarded(X, 3).offset == ROOM + 3 and guarded(X, 3).whole.size == 2 * ROOM + 3 + 6
    line = columns(X[0])
    assert (line.strides, line.offset, line.whole.size) == ((2,), ROOM, 2 * ROOM + 6)
    assert spread(X + 1).view().tolist() == [[1.0] * 3] * 2
    empty = guarded(X[:0])
    assert empty.view().size == 0 and empty.around(empty.whole).shape == (2 * ROOM + 1, 4)
