"""N19 on every machine: what a step of Muon leaves of a matrix depends on that matrix alone, and on no order."""

from itertools import product

import numpy as np
import pytest
from hypothesis import strategies as st

from laws.marks import few
from laws.test_n19_matrices import SEEDS, arrays, parts, same
from refopt import gpu
from refopt.cpu import Blocks

pytest.importorskip("ml_dtypes")

pytestmark = pytest.mark.clause("N19", "N11")
SIDES, LARGE = st.integers(0, 7), [(60, 300), (300, 61), (1, 5), (0, 3), (256, 264), (129, 130)]


def stepped(machine, tensors, **named):
    """Parameter and velocity of each tensor after a step of all of them in one call."""
    lists = [[machine.to_device(x) for x in xs] for xs in zip(*tensors, strict=True)]
    gpu.merged_muon(*lists, **{"lr": 0.5, "mu": 0.5, "iterations": 1} | named)
    return [(p.copy_to_host(), v.copy_to_host()) for p, v in zip(lists[0], lists[2], strict=True)]


@few(4, data=st.data())
def test_a_matrix_does_not_depend_on_the_others(machine, data):
    """Beside any others, in any order, in one call or several; transposed; as a parameter or as a block of one.

    With rows for columns, in the same memory, all bits are the same, unless a matrix is square: then its rows count.
    """
    shapes = st.sampled_from(LARGE) if machine.name == "gpu" else st.tuples(SIDES, SIDES)
    tensors, blocks, pieces = [], [], []
    for shape in data.draw(st.lists(shapes, min_size=1, max_size=2)):
        ends = [data.draw(st.integers(min(side, 1), side)) for side in shape]
        cuts = [(end, side - end) if end < side else (side,) for end, side in zip(ends, shape, strict=True)]
        tensors.append(arrays(shape, data.draw(SEEDS)))
        blocks.append(Blocks(*(sizes if any(sizes) else 1 for sizes in cuts)))
        for piece in product(*map(parts, cuts)):
            pieces.append((len(tensors), tensors[-1], piece))
    for _, whole, piece in pieces:
        alone = [np.ascontiguousarray(x[piece]) for x in whole]
        tensors += [alone, [x.T for x in alone]]
    blocks += [Blocks()] * (len(tensors) - len(blocks))
    together = stepped(machine, tensors, blocks=blocks, adjust_lr="match_rms_adamw")
    singles = iter(together[-2 * len(pieces) :])
    for (of, _, piece), plain, turned in zip(pieces, singles, singles, strict=True):
        same([x[piece] for x in together[of - 1]], plain)
        if plain[0].shape[0] != plain[0].shape[1]:
            same(plain, [x.T for x in turned])
    order = data.draw(st.permutations(range(len(tensors))))[:3]
    some = [tensors[i] for i in order], [blocks[i] for i in order]
    others = stepped(machine, some[0], blocks=some[1], adjust_lr="match_rms_adamw")
    for i, other in zip(order, others, strict=True):
        same(together[i], other)
