"""N7: the norm of all gradients is the tree of N6 over the tensors' sums, in the order of the list."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from evidence.triplets import LARGE, Triplet, across, triplets, values
from hypothesis import given
from hypothesis import strategies as st

from laws.test_n06_reduction import norm_of_reference, norm_on, up_to

pytestmark = pytest.mark.clause("N7")


def of_tensors(a: int, b: int) -> int:
    """How far above the tensors two of them meet."""
    return (a ^ b).bit_length()


def between_tensors(count: int, seed: str, some: int) -> list[Triplet]:
    """Triplets of tensors, which are joined neighbours first in the order of the list (N7)."""
    return triplets(count, seed, some, of_tensors, across)


def wrong_of_tensors(count: int, some: list[Triplet], norm: Callable) -> list[str]:
    """Of tensors of one to three elements, of two dtypes by turns; one is not there, and one is empty."""
    found = []
    for triplet in some:
        x = values(triplet, count, np.dtype(np.float32), np.float32)
        grads: list[Any] = [np.zeros(1 + k % 3, ("f2", "f4")[k // 2 % 2]) for k in range(count)]
        for k, g in enumerate(grads):
            g[-1] = x[k]
        rest = np.flatnonzero(x == 0)
        if rest.size > 1:
            grads[rest[0]], grads[rest[-1]] = None, np.zeros(0, np.float32)
        if (norm(grads) > LARGE) != triplet.exceeds:
            found.append(f"{count} tensors: {triplet}")
    return found


def some_of(counts: tuple[int, ...], most: int) -> st.SearchStrategy[tuple[int, list[Triplet]]]:
    """A number of tensors, and triplets of them."""
    return st.sampled_from(counts).flatmap(
        lambda count: st.tuples(st.just(count), up_to(most, st.sampled_from(between_tensors(count, "", 10**6)))))


@given(some=some_of((3, 4, 7, 33, 100, 1025), 40))
def test_the_reference_joins_tensors_by_the_tree(some):
    """The reference adds the sums of tensors, in list order, by the tree of N6."""
    assert not wrong_of_tensors(*some, norm_of_reference)


@given(data=st.data())
def test_the_kernels_join_tensors_by_the_tree(machine, data):
    """So do the kernels."""
    some = some_of((3, 7, 33, 100), 4) if machine.name == "executor" else some_of((3, 7, 33, 100, 1025), 100)
    assert not wrong_of_tensors(*data.draw(some), norm_on(machine))
