"""Sums of squares in other orders than that of docs/numerics.md, N6, and in that one, of the same parts."""

import numpy as np


def in_order(x):
    """Over the last axis, as all of these."""
    return np.add.accumulate(x, -1)[..., -1]


def halves(x):
    """The first half and the second."""
    while x.shape[-1] > 1:
        x = even(x)
        x = x[..., : x.shape[-1] // 2] + x[..., x.shape[-1] // 2 :]
    return x[..., 0]


def pairs(x):
    while x.shape[-1] > 1:
        x = even(x)
        x = x[..., ::2] + x[..., 1::2]
    return x[..., 0]


def even(x):
    return np.concatenate([x, np.zeros((*x.shape[:-1], x.shape[-1] % 2), x.dtype)], -1)


def strided(tiles, lanes=256):
    """The elements of each lane."""
    return tiles.reshape(len(tiles), -1, lanes).swapaxes(1, 2)


def by_tile(lanes=strided, tile=1024, rows=in_order, of_lanes=pairs, of_tiles=pairs):
    """The contract's sum, or with something else in a place."""

    def total(x):
        squares = np.zeros(-(-x.size // tile) * tile, x.dtype)
        squares[: x.size] = x * x
        return of_tiles(of_lanes(rows(lanes(squares.reshape(-1, tile)))))

    return total


def wide(x):
    return x.dtype.type(np.sum(x.astype(np.longdouble) ** 2))


OTHERS = {"in order": lambda x: in_order(x * x), "by NumPy": lambda x: np.sum(x * x),
          "pairs alone": lambda x: pairs(x * x), "halves alone": lambda x: halves(x * x), "in a wider type": wide,
          "neighbours in a lane": by_tile(lambda tiles: tiles.reshape(len(tiles), 256, -1)),
          "128 lanes": by_tile(lambda tiles: strided(tiles, 128)),
          "512 lanes": by_tile(lambda tiles: strided(tiles, 512)), "tiles of 512": by_tile(tile=512),
          "tiles of 2048": by_tile(tile=2048), "a lane as a tree": by_tile(rows=pairs),
          "a lane from its end": by_tile(rows=lambda x: in_order(x[..., ::-1])),
          "lanes in order": by_tile(of_lanes=in_order), "lanes in halves": by_tile(of_lanes=halves),
          "tiles in order": by_tile(of_tiles=in_order), "tiles in halves": by_tile(of_tiles=halves)}
