"""Sums along one fixed tree (numerics, N6).

A floating-point sum depends on its order, so the order is part of the specification. The elements of a
tensor, in memory order, are cut into tiles of ``TILE``; element ``i`` of a tile belongs to lane
``i % LANES``. Each lane adds its elements in index order, the lanes are added by a binary tree, and the
tiles of the tensor by another. Both trees join neighbours first, and a missing neighbour counts as +0::

    0 1 2 3 4 5          ((0 + 1) + (2 + 3)) + (4 + 5)

Neighbours come first so that a thread may have 1, 2, 4 or 8 consecutive lanes, a warp may have a tile, and any aligned
run of 2**k tiles may be added in advance: the bits stay the same.
"""

import numpy as np

TILE = 1024
LANES = 256


def tree_sum(values):
    """Sum over the last axis by the binary tree, neighbours first; shape (..., n) to (...)."""
    if values.shape[-1] == 0:
        return np.zeros(values.shape[:-1], values.dtype)
    while values.shape[-1] > 1:
        if values.shape[-1] % 2:
            values = np.concatenate([values, np.zeros_like(values[..., :1])], axis=-1)
        values = values[..., 0::2] + values[..., 1::2]
    return values[..., 0]


def tile_sums(values):
    """The sum of each tile of non-negative values along the last axis: shape (..., n) to (..., ceil(n / TILE)).

    A number without axes is one value.
    """
    *lead, size = values.shape or (1,)
    tiles = -(-size // TILE)
    padded = np.zeros((*lead, tiles * TILE), values.dtype)
    padded[..., :size] = values
    rows = padded.reshape(*lead, tiles, TILE // LANES, LANES)
    lanes = rows[..., 0, :]
    for row in range(1, TILE // LANES):
        lanes = lanes + rows[..., row, :]
    return tree_sum(lanes)


def sum_of_squares(values):
    """The sum of squares along the last axis, in the array's own dtype."""
    return tree_sum(tile_sums(values * values))
