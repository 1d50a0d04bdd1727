"""N7: the norm of all gradients is the tree of N6 over the tensors' sums, in the order of the list."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from evidence.triplets import LARGE, Triplet, across, triplets, values

from laws.test_n06_reduction import norm_of_reference, norm_on
from refopt import cpu, gpu
from refopt.checks.dtypes import numpy_dtype
from refopt.oracle.exact.placed import Placed
from refopt.oracle.exact.strategies import DTYPES, around, chunk_of

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


@pytest.mark.parametrize("count", [3, 4, 7, 33, 100, pytest.param(1025, marks=pytest.mark.slow)])
def test_the_reference_joins_tensors_by_the_tree(count):
    """The reference joins the sums of tensors, in the order of the list, by the tree of N6."""
    assert not wrong_of_tensors(count, between_tensors(count, str(count), 60), norm_of_reference)


@pytest.mark.parametrize("count", [3, 7, 33, 100])
def test_the_kernels_join_tensors_by_the_tree(machine, count):
    """So do the kernels."""
    some = between_tensors(count, f"kernels {count}", (8 if count < 33 else 3) if machine.name == "executor" else 100)
    assert not wrong_of_tensors(count, some, norm_on(machine))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("chunks", [1, 2])
def test_gradients_about_a_chunk_long(machine, dtype, chunks):
    """With what is not finite in the last element of the last chunk."""
    rng = np.random.default_rng(0)
    for bad in (1.0, np.inf):
        grads = [rng.normal(size=n).astype(numpy_dtype(dtype)) for n in around(chunks * chunk_of(dtype, dtype))]
        grads[-1][-1] = bad
        expected = cpu.check_gradients(grads)
        check = gpu.gradient_check([Placed(machine, g).array for g in grads])
        check()
        machine.synchronize()
        for name, value in expected._asdict().items():
            assert getattr(check, name).copy_to_host().tobytes() == value.tobytes(), name


def test_no_gradients_have_a_norm_of_zero(machine):
    """No tensors, or none with an element: a norm of zero."""
    for grads in ([], [None], [np.zeros(0, np.float32)]):
        expected = cpu.check_gradients(grads)
        with gpu.use(machine.name):
            check = gpu.gradient_check([g if g is None else Placed(machine, g).array for g in grads])
        check()
        assert check.grad_norm.copy_to_host() == expected.grad_norm == 0
        assert check.found_inf.copy_to_host() == expected.found_inf == 0
