"""The tables that merged kernels read: where each tensor is, how it is cut, how its sums are joined.

All entries are int64: byte addresses, element indices, slots. The tables are on the device, are built once per plan,
and describe any number of tensors of any size.
"""

from typing import NamedTuple

import numpy as np

from refopt.cpu.reduce import TILE
from refopt.gpu.machine import Properties

# Columns of the chunk table: the tensor, the first element and the last + 1, the slot of the first tile's sum, the node
# that counts the chunk, and whether vectors can access all arrays of the tensor.
TENSOR, START, STOP, SLOT, NODE, ALIGNED = range(6)

# Columns of the node table: the slot of the first child's sum, the number of children, the slot of the node's own sum,
# the number of arrivals that it waits for, and its parent or -1.
FIRST_CHILD, CHILDREN, OWN_SUM, ARRIVALS, PARENT = range(5)
FANOUT = 1024  # the most children of a node

# Bytes of parameter and gradient whose norms a block takes, the fastest on an H200; fewer on a GPU whose L2 cache has
# less than twice that per multiprocessor, since the update starts with what is in the cache.
CHUNK_BYTES = 65536


class Tables(NamedTuple):
    """Host copies: ``chunks`` (C, 6), ``nodes`` (N, 5) and ``slots``, how many sums a row has."""

    chunks: np.ndarray
    nodes: np.ndarray
    slots: int


def chunk_bytes(machine: Properties) -> int:
    """The approximate bytes of a chunk on a machine."""
    return min(CHUNK_BYTES, machine.l2 // (2 * machine.multiprocessors))


def tiles_per_chunk(element_bytes: int, chunk: int = CHUNK_BYTES) -> int:
    """Tiles of a chunk of ``chunk`` bytes: a power of two, at least 2, so that no chunk straddles two nodes."""
    return 1 << max(2, chunk // (TILE * element_bytes)).bit_length() - 1


def build(sizes: list[int], aligned: list[bool], chunk_tiles: int, keep_empty: bool = False) -> Tables:
    """Cut tensors into chunks of ``chunk_tiles`` tiles and lay out the tree that joins their sums.

    A node joins at most `FANOUT` consecutive sums: a leaf the tile sums of 2**20 elements, a node above the sums of
    1024 nodes. A node waits for its chunks, or for its children.

    Large tensors come first: their sums take longest to join, and should not be left for the end. With ``keep_empty``
    a tensor without elements also gets a chunk, and a node that joins nothing.
    """
    chunks: list[np.ndarray] = []
    nodes: list[tuple[int, int, int, int, int]] = []
    slots = 0
    for tensor in sorted(range(len(sizes)), key=lambda tensor: -sizes[tensor]):
        size = sizes[tensor]
        if size == 0:
            if keep_empty:
                chunks.append(np.array([(tensor, 0, 0, slots, len(nodes), False)], np.int64))
                nodes.append((slots, 0, slots, 1, -1))
                slots += 1
            continue
        starts = np.arange(0, size, chunk_tiles * TILE, dtype=np.int64)
        stops = np.minimum(starts + chunk_tiles * TILE, size)
        slot, leaf = slots + starts // TILE, len(nodes) + starts // TILE // FANOUT
        columns = np.broadcast_arrays(tensor, starts, stops, slot, leaf, aligned[tensor])  # in the order of their names
        chunks.append(np.stack(columns, 1).astype(np.int64))
        first, count, per_arrival = slots, -(-size // TILE), chunk_tiles
        slots += count
        parents = 0
        while parents != 1:
            parents = -(-count // FANOUT)
            above = len(nodes) + parents
            for k in range(parents):
                under = min(count - k * FANOUT, FANOUT)
                parent = above + k // FANOUT if parents > 1 else -1
                nodes.append((first + k * FANOUT, under, slots + k, -(-under // per_arrival), parent))
            first, count, per_arrival = slots, parents, 1
            slots += parents
    table = np.concatenate(chunks) if chunks else np.empty((0, 6), np.int64)
    return Tables(table, np.array(nodes, np.int64).reshape(-1, 5), slots)
