"""N18: Muon's iterations round to the compute dtype in three places, and nowhere else."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from refopt import cpu
from refopt.cpu.matmul import by_integers, matmul
from refopt.cpu.muon import COEFFICIENTS, normalized, orthogonalized

bfloat16 = pytest.importorskip("ml_dtypes").bfloat16

pytestmark = pytest.mark.clause("N18")
COMPUTE = {"bfloat16": np.dtype(bfloat16), **{name: np.dtype(name) for name in ("float16", "float32", "float64")}}
compute = pytest.mark.parametrize("dtype", COMPUTE.values(), ids=list(COMPUTE))
SEEDS, SHAPES = st.integers(0, 2**32 - 1), st.tuples(st.integers(1, 6), st.integers(1, 20))
OTHER = (2.0, -1.5, 0.5)
TRIPLES = COEFFICIENTS, OTHER, (1 / 3, -0.1, 0.7)


def draw(seed, *shape, dtype=np.float64):
    """A matrix whose norm is 1."""
    x = np.random.default_rng(seed).standard_normal(shape)
    return (x / np.linalg.norm(x)).astype(dtype)


def same(x, y):
    assert x.shape == y.shape and x.dtype == y.dtype and x.tobytes() == y.tobytes()


def by_loops(x, triple, product):
    """An iteration, one element after the other: each operation is one of NumPy's scalars."""
    real = np.float64 if x.dtype == np.float64 else np.float32
    a, b, c = map(real, triple)
    m, n = x.shape
    square, polynomial, new = np.empty((m, m), x.dtype), np.empty((m, m), x.dtype), np.empty_like(x)
    for i, j in np.ndindex(m, m):
        square[i, j] = product(x[i : i + 1], x[j : j + 1].T)[0, 0]
    for i, j in np.ndindex(m, m):
        term = c * product(square[i : i + 1], square[:, j : j + 1])[0, 0]
        polynomial[i, j] = b * real(square[i, j]) + term
    for i, j in np.ndindex(m, n):
        new[i, j] = a * real(x[i, j]) + product(polynomial[i : i + 1], x[:, j : j + 1])[0, 0]
    return new


@compute
@given(shape=SHAPES, seed=SEEDS, triples=st.lists(st.sampled_from(TRIPLES), max_size=2))
def test_a_product_and_its_added_term_are_rounded_once(dtype, shape, seed, triples):
    """A, B and x are each rounded to the compute dtype once; the added terms are formed in fp32, or fp64.

    Coefficients are rounded to that; those of an iteration are its own, and iterations follow one another.
    """
    x = expected = draw(seed, *sorted(shape), dtype=dtype)
    for triple in triples:
        expected = by_loops(expected, triple, by_integers if dtype.itemsize == 2 else matmul)
    same(orthogonalized(x, triples), expected)


@compute
@given(shape=SHAPES, seed=SEEDS, real=st.sampled_from([np.float32, np.float64]), scale=st.floats(1e-3, 8))
def test_the_quotient_is_rounded_once(dtype, shape, seed, real, scale):
    """A matrix is divided by its norm in the arithmetic type, fp64 among them, and then rounded."""
    u = (draw(seed, *shape) * scale).astype(real)
    norm = np.sqrt(cpu.reduce.sum_of_squares(u.reshape(-1)))
    x = normalized(u, epsilon=real(1e-7), compute=dtype.name)
    assert x.dtype == dtype
    distance = np.abs(x.astype(np.longdouble) - u / norm)
    for side in (-1, 1):
        other = (x.view(f"i{dtype.itemsize}") + side).view(dtype)
        assert (distance <= np.abs(other.astype(np.longdouble) - u / norm)).all()


def test_fp64_is_rounded_to_16_bits_at_once():
    """Not by way of fp32: 1 + 2**-8 + 2**-40 is above the middle of two numbers of bf16."""
    u = np.array([[1 + 2.0**-8 + 2.0**-40]])
    assert float(normalized(u, epsilon=1.0, compute="bfloat16")[0, 0]) == 1
    assert float(normalized(u, epsilon=2.0, compute="float64")[0, 0]) == u[0, 0] / 2
    assert float(normalized(u / 4, epsilon=0.25, compute="bfloat16")[0, 0]) == 1
    u = np.array([[1.0, 1 + 2.0**-8 + 2.0**-40]])
    assert float(normalized(u, epsilon=4.0, compute="bfloat16")[0, 1]) == (1 + 2.0**-7) / 4


@compute
@given(shape=st.tuples(st.integers(2, 24), st.integers(24, 50)), seed=SEEDS)
def test_iterations_are_those_of_singular_values(dtype, shape, seed):
    """Each goes through the polynomial; in 16 bits, within 3 % of the norm (1.5 % were measured)."""
    x = draw(seed, *shape, dtype=dtype)
    left, s, right = np.linalg.svd(x.astype(np.float64), full_matrices=False)
    for triple in (COEFFICIENTS, COEFFICIENTS, OTHER):
        s = triple[0] * s + triple[1] * s**3 + triple[2] * s**5
    got = orthogonalized(x, [COEFFICIENTS, COEFFICIENTS, OTHER]).astype(np.float64)
    bound = {"bfloat16": 0.03, "float16": 0.03 / 8, "float32": 1e-5, "float64": 1e-13}[dtype.name]
    assert np.linalg.norm(got - (left * s) @ right) < bound * np.linalg.norm(s)
