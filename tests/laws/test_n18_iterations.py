"""N18: Muon's iterations round each matrix to the compute dtype once, and mirror the squares of Gram matrices."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from refopt import cpu
from refopt.cpu.matmul import by_integers, matmul
from refopt.cpu.muon import COEFFICIENTS
from refopt.cpu.newton_schulz import LONGEST, PRESETS, normalized, orthogonalized, restarting, schedule, takes_gram

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
    """A, B and x are each rounded to the compute dtype once; terms are added in fp32, or fp64.

    Coefficients are rounded to that; those of an iteration are its own, and iterations follow one another.
    """
    x = expected = draw(seed, *sorted(shape), dtype=dtype)
    for triple in triples:
        expected = by_loops(expected, triple, by_integers if dtype.itemsize == 2 else matmul)
    same(orthogonalized(x, triples), expected)


def gram_by_loops(x, triples, restarts, product):
    """Iterations by Gram matrices: of each square, elements on and below the diagonal, one after the other."""
    real = np.float64 if x.dtype == np.float64 else np.float32
    m, n = x.shape

    def square(element):
        made = np.empty((m, m), x.dtype)
        for i in range(m):
            for j in range(i + 1):
                made[i, j] = made[j, i] = element(i, j)
        return made

    def plus(scale, added, factor, a, b):
        """Of scale * added + factor * (a b)."""
        return square(lambda i, j: scale * real(added[i, j]) + factor * product(a[i : i + 1], b[:, j : j + 1])[0, 0])

    def applied(q, x):
        made = np.empty_like(x)
        for i, j in np.ndindex(m, n):
            made[i, j] = product(q[i : i + 1], x[:, j : j + 1])[0, 0]
        return made

    q = None
    for k, triple in enumerate(triples):
        a, b, c = map(real, triple)
        if k in restarts:
            x, q = applied(q, x), None
        if q is None:
            r = square(lambda i, j: product(x[i : i + 1], x[j : j + 1].T)[0, 0])  # noqa: B023
        z = plus(b, r, c, r, r)
        q = square(lambda i, j: real(z[i, j]) + a if i == j else z[i, j]) if q is None else plus(  # noqa: B023
            a, q, real(1), q, z)
        t = plus(a, r, real(1), r, z)
        r = plus(a, t, real(1), z, t)
    return applied(q, x)


@compute
@given(shape=st.tuples(st.integers(1, 4), st.integers(5, 9)), seed=SEEDS, segments=st.lists(
    st.integers(1, 2), min_size=1, max_size=2), turned=st.booleans())
def test_gram_matrices_are_mirrored_and_rounded_once(dtype, shape, seed, segments, turned):
    """R, Z, Q, T, and x at restarts and the end, each once; elements above the diagonal copy those below.

    A matrix and its transpose are the same problem.
    """
    triples = [TRIPLES[k % 3] for k in range(sum(segments))]
    restarts = tuple(np.cumsum(segments[:-1]).tolist())
    x = draw(seed, *shape, dtype=dtype)
    expected = gram_by_loops(x, triples, restarts, by_integers if dtype.itemsize == 2 else matmul)
    same(*((orthogonalized(x.T, triples, restarts).T, expected) if turned else
           (orthogonalized(x, triples, restarts), expected)))


@pytest.mark.parametrize("dtype", COMPUTE)
def test_segments_are_as_long_as_a_dtype_allows(dtype):
    """Longer ones are refused; restarts after the last iteration change nothing, and short runs need none."""
    most = LONGEST[dtype]
    for restarts, iterations in (((), most), ((most,), 2 * most), ((1,), most + 1), ((most, most + 90), 2 * most)):
        assert restarting("restarts", list(restarts), iterations, dtype) == restarts
    for restarts, iterations in (((), most + 1), ((most + 1,), most + 2), ((1,), most + 2)):
        with pytest.raises(ValueError, match=f"restarts: expected one after at most {most} iterations in {dtype}"):
            restarting("restarts", restarts, iterations, dtype)
    assert restarting("restarts", None, 99, dtype) is None


def test_nearly_square_matrices_are_iterated_as_without_restarts():
    """Gram matrices are used for aspect ratios of at least 5 to 4."""
    for shape, gram in (((4, 5), True), ((5, 4), True), ((5, 6), False), ((8, 9), False), ((1, 2), True)):
        assert takes_gram(*shape, ()) == takes_gram(*shape, (2,)) == gram and not takes_gram(*shape, None)


def test_presets_are_schedules():
    """A preset gives a triple per iteration: its first ones, then its last one repeatedly."""
    assert schedule("", "jordan", 7) == [COEFFICIENTS] * 7
    for name in ("polar_express", "you"):
        triples = PRESETS[name]
        assert schedule("", name, 3) == [*triples[:3]] and schedule("", name, 7) == [*triples, *triples[-1:] * 2]
        s = np.linspace(0.05, 1)
        for a, b, c in triples:
            s = a * s + b * s**3 + c * s**5
        assert abs(s - 1).max() < 0.2


@compute
@given(shape=SHAPES, seed=SEEDS, real=st.sampled_from([np.float32, np.float64]), scale=st.floats(1e-3, 8))
def test_the_quotient_is_rounded_once(dtype, shape, seed, real, scale):
    """A matrix is divided by its norm in the arithmetic type, fp64 included, and then rounded."""
    u = (draw(seed, *shape) * scale).astype(real)
    norm = np.sqrt(cpu.reduce.sum_of_squares(u.reshape(-1)))
    x = normalized(u, epsilon=real(1e-7), compute=dtype.name)
    assert x.dtype == dtype
    distance = np.abs(x.astype(np.longdouble) - u / norm)
    for side in (-1, 1):
        other = (x.view(f"i{dtype.itemsize}") + side).view(dtype)
        assert (distance <= np.abs(other.astype(np.longdouble) - u / norm)).all()


def test_fp64_is_rounded_to_16_bits_directly():
    """Not through fp32: 1 + 2**-8 + 2**-40 is above the midpoint of two bf16 numbers."""
    u = np.array([[1 + 2.0**-8 + 2.0**-40]])
    assert float(normalized(u, epsilon=1.0, compute="bfloat16")[0, 0]) == 1
    assert float(normalized(u, epsilon=2.0, compute="float64")[0, 0]) == u[0, 0] / 2
    assert float(normalized(u / 4, epsilon=0.25, compute="bfloat16")[0, 0]) == 1
    u = np.array([[1.0, 1 + 2.0**-8 + 2.0**-40]])
    assert float(normalized(u, epsilon=4.0, compute="bfloat16")[0, 1]) == (1 + 2.0**-7) / 4


@compute
@given(shape=st.tuples(st.integers(2, 24), st.integers(24, 50)), seed=SEEDS)
def test_iterations_map_singular_values(dtype, shape, seed):
    """The polynomial maps each singular value; in 16 bits, within 3 % of the norm (measured: 1.5 %)."""
    x = draw(seed, *shape, dtype=dtype)
    left, s, right = np.linalg.svd(x.astype(np.float64), full_matrices=False)
    for triple in (COEFFICIENTS, COEFFICIENTS, OTHER):
        s = triple[0] * s + triple[1] * s**3 + triple[2] * s**5
    got = orthogonalized(x, [COEFFICIENTS, COEFFICIENTS, OTHER]).astype(np.float64)
    bound = {"bfloat16": 0.03, "float16": 0.03 / 8, "float32": 1e-5, "float64": 1e-13}[dtype.name]
    assert np.linalg.norm(got - (left * s) @ right) < bound * np.linalg.norm(s)
