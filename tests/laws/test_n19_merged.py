"""N19 on every machine: what a step of Muon leaves of a matrix depends on that matrix alone, and on no order."""

import numpy as np
import pytest

from laws.test_n19_matrices import same
from refopt import gpu
from refopt.cpu import Blocks

pytest.importorskip("ml_dtypes")

pytestmark = pytest.mark.clause("N19", "N11")
SHAPES = {"executor": [(6, 9), (9, 4), (0, 3)],
          "gpu": [(60, 300), (300, 61), (1, 5), (0, 3), (256, 264), (129, 130)]}


def draw(shape, seed):
    """Parameter, gradient and velocity."""
    return list(np.random.default_rng(seed).standard_normal((3, *shape)).astype(np.float32))


def stepped(machine, tensors, **named):
    """Parameter and velocity of each tensor after a step of all of them in one call."""
    lists = [[machine.to_device(x) for x in xs] for xs in zip(*tensors, strict=True)]
    gpu.merged_muon(*lists, **{"lr": 0.5, "mu": 0.5, "iterations": 1} | named)
    return [(p.copy_to_host(), v.copy_to_host()) for p, v in zip(lists[0], lists[2], strict=True)]


def test_merging_order_and_count_change_no_bit(machine):
    """Each matrix by itself, all in one call, some of them, and all in another order."""
    tensors = [draw(shape, k) for k, shape in enumerate(SHAPES[machine.name])]
    together = stepped(machine, tensors)
    backwards = stepped(machine, tensors[::-1])[::-1]
    some = stepped(machine, tensors[1::2])
    for k, tensor in enumerate(tensors):
        (alone,) = stepped(machine, [tensor])
        same(together[k], alone)
        same(backwards[k], alone)
        if k % 2:
            same(some[k // 2], alone)
    assert any((p != tensor[0]).any() for (p, _), tensor in zip(together, tensors, strict=True))


@pytest.mark.parametrize(("blocks", "parts"), [
    (Blocks(rows=(4, 8)), [np.s_[:4], np.s_[4:]]), (Blocks(columns=2), [np.s_[:, :8], np.s_[:, 8:]]),
    (Blocks(rows=3, columns=(6, 10)), [np.s_[4 * k : 4 * k + 4, part] for k in range(3)
                                       for part in (np.s_[:6], np.s_[6:])])], ids=["rows", "columns", "both"])
def test_a_partition_into_blocks_is_one_into_parameters(machine, blocks, parts):
    """In one call both: each block has the bits of a parameter that it makes up."""
    whole = draw((12, 16), 1)
    alone = [[np.ascontiguousarray(x[part]) for x in whole] for part in parts]
    first, *others = stepped(machine, [whole, *alone], blocks=[blocks] + [Blocks()] * len(parts))
    for part, other in zip(parts, others, strict=True):
        same([x[part] for x in first], other)
    assert (first[0] != stepped(machine, [whole])[0][0]).any()


def test_the_transposed_problem(machine):
    """The same memory with rows for columns: the same bits, of tall matrices and of wide ones, in one call.

    A square matrix has two smaller sides, and which of both products is iterated depends on which are its rows.
    """
    tensors = [draw(shape, k) for k, shape in enumerate(SHAPES[machine.name])]
    turned = [[x.T for x in tensor] for tensor in tensors]
    both = stepped(machine, [*tensors, *turned], adjust_lr="match_rms_adamw")
    for plain, other in zip(both[: len(tensors)], both[len(tensors) :], strict=True):
        same(plain, [x.T for x in other])


def test_rows_in_another_order(machine):
    """Up to sixteen are in one chunk of a sum (N17), whose order is free; numbers are such that norms are exact."""
    draws = np.random.default_rng(3).integers(-8, 8, (3, 16, 24)).astype(np.float32)
    rows = np.random.default_rng(4).permutation(16)
    plain, other = stepped(machine, [list(draws), list(draws[:, rows])], iterations=2)
    same([x[rows] for x in plain], other)


def test_signs_and_powers_of_two(machine):
    """A turned gradient moves the other way; one of another power of two moves as far, without momentum."""
    zero, g = np.zeros((5, 7), np.float32), draw((5, 7), 5)[1]
    tensors = [[zero, g * factor, zero] for factor in (np.float32(1), np.float32(-1), np.float32(64))]
    first, turned, larger = (p for p, _ in stepped(machine, tensors))
    same([first, first], [-turned, larger])
