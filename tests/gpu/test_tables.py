"""The tables that merged kernels walk: every element once, and sums as the tree of tiles has them."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from refopt.cpu.reduce import TILE
from refopt.gpu import tables
from refopt.gpu.machine import Properties
from refopt.gpu.tables import ALIGNED, CHILDREN, FANOUT, FIRST_CHILD, NODE, OWN_SUM, PARENT, SLOT, START, STOP, TENSOR

sizes = st.lists(st.one_of(st.integers(0, 5000),
                           st.sampled_from([0, 1, 8191, 8192, 8193, 2**20, 2**20 + 1, 2**21 + 5, 2**23])), max_size=8)
widths = st.sampled_from([2, 4, 8, 16])


def build(sizes, chunk_tiles=8):
    return tables.build(sizes, [i % 2 == 0 for i in range(len(sizes))], chunk_tiles)


@given(sizes, widths)
def test_chunks_cover_every_element_once(sizes, chunk_tiles):
    """Chunks of a tensor follow each other without gap or overlap, begin on tiles, and are at most so long."""
    chunks, _, _ = build(sizes, chunk_tiles)
    for tensor, size in enumerate(sizes):
        mine = chunks[chunks[:, TENSOR] == tensor]
        mine = mine[np.argsort(mine[:, START])]
        assert np.array_equal(mine[:, START], np.append(0, mine[:-1, STOP])[: len(mine)])
        assert (mine[-1, STOP] if len(mine) else 0) == size
        assert (mine[:, START] < mine[:, STOP]).all() and (mine[:, START] % TILE == 0).all()
        assert (mine[:, STOP] - mine[:, START] <= chunk_tiles * TILE).all()
        assert (mine[:, ALIGNED] == (tensor % 2 == 0)).all()


@pytest.mark.clause("N6")
@given(st.lists(st.integers(0, 3000), max_size=8), widths)
def test_the_tables_add_up_the_tree(sizes, chunk_tiles):
    """Walking the nodes in order gives the sums of cpu/reduce.py, bit for bit."""
    from refopt.cpu.reduce import tile_sums, tree_sum

    chunks, nodes, slots = build(sizes, chunk_tiles)
    values = [np.random.default_rng(i).normal(size=n).astype(np.float32) ** 2 for i, n in enumerate(sizes)]
    sums = np.full(slots, np.nan, np.float32)
    root = {}
    for chunk in chunks:
        part = tile_sums(values[chunk[TENSOR]][chunk[START] : chunk[STOP]])
        sums[chunk[SLOT] : chunk[SLOT] + part.size] = part
        node = chunk[NODE]
        while nodes[node, PARENT] >= 0:
            node = nodes[node, PARENT]
        root[chunk[TENSOR]] = nodes[node, OWN_SUM]
    for node in nodes:
        sums[node[OWN_SUM]] = tree_sum(sums[node[FIRST_CHILD] : node[FIRST_CHILD] + node[CHILDREN]])
    for tensor, slot in root.items():
        assert sums[slot] == tree_sum(tile_sums(values[tensor]))


@pytest.mark.parametrize("size", [2**31 - 1, 2**31, 2**31 + 1, 2**32 + 12345])
def test_beyond_two_to_the_31(size):
    """Offsets are 64 bits wide; the tables are linear in the number of elements, with three levels of nodes."""
    chunks, nodes, slots = build([3, size, 5], 16)
    assert chunks.dtype == nodes.dtype == np.int64
    large = chunks[chunks[:, TENSOR] == 1]
    assert large[:, START].min() == 0 and large[:, STOP].max() == size
    assert np.array_equal(np.sort(large[:, START]), np.arange(0, size, 16 * TILE))
    assert int((large[:, STOP] - large[:, START]).sum()) == size and len(large) == -(-size // (16 * TILE))
    leaves = -(-size // TILE // FANOUT)
    assert len(nodes) <= 2 + leaves + -(-leaves // FANOUT) + 1 + 1 and slots <= -(-size // TILE) + len(nodes) + 2
    under = nodes[nodes[:, PARENT] >= 0]
    parents = nodes[under[:, PARENT]]
    first, own = parents[:, FIRST_CHILD], under[:, OWN_SUM]
    assert (first <= own).all() and (own < first + parents[:, CHILDREN]).all()


@pytest.mark.parametrize("chunk", [tables.CHUNK_BYTES, 8192])
@pytest.mark.parametrize("element_bytes", [6, 8, 12, 14, 16, 24])
def test_chunk_length(element_bytes, chunk):
    """A chunk is a power of two of tiles, at least two, and no chunk straddles two nodes."""
    tiles = tables.tiles_per_chunk(element_bytes, chunk)
    assert tiles >= 2 and tiles & (tiles - 1) == 0 and FANOUT % tiles == 0
    assert tiles == 2 or tiles <= chunk / (TILE * element_bytes) < 2 * tiles


def test_chunks_fit_into_half_of_the_cache():
    assert tables.chunk_bytes(Properties("H200", (9, 0), 132, 50 << 20)) == tables.CHUNK_BYTES
    assert tables.chunk_bytes(Properties("T4", (7, 5), 40, 4 << 20)) == (2 << 20) // 40


def test_large_tensors_come_first():
    assert build([3, 0, 9000, 5000, 9000]).chunks[:, TENSOR].tolist() == [2, 2, 4, 4, 3, 0]


def test_an_empty_tensor_may_have_a_chunk_and_a_node():
    chunks, nodes, slots = tables.build([0, 5], [True, True], 8, keep_empty=True)
    assert chunks.tolist() == [[1, 0, 5, 0, 0, 1], [0, 0, 0, 2, 1, 0]]
    assert nodes.tolist() == [[0, 1, 1, 1, -1], [2, 0, 2, 1, -1]] and slots == 3
