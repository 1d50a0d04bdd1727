"""Hypothesis strategies: nasty numbers, lists of tensors, cases of LARS."""

import math
from typing import Any

import numpy as np
from hypothesis import strategies as st

from refopt.conformance.cases import Case, dtype_of
from refopt.dtypes import SIZES, arithmetic

# Around a vector, a row, a tile, a chunk.
EDGES = (0, 1, 2, 3, 4, 5, 7, 8, 9, 31, 33, 127, 129, 255, 256, 257, 511, 512, 1023, 1024, 1025, 2048, 4097)
LARGE = (8191, 8192, 8193)

DTYPES = tuple(SIZES)


@st.composite
def nasty_floats(draw: Any, dtype: str, finite: bool = False) -> np.generic:
    """Any value that tends to go wrong: zeros of both signs, subnormal, tiny, huge, and inf and NaN unless finite."""
    kind = dtype_of(dtype)
    info = _info(dtype)
    tiny, most = float(info.tiny), float(info.max)
    ordinary = st.floats(-8, 8).filter(lambda x: x == 0 or abs(x) >= tiny)
    special = [0.0, -0.0, tiny, -tiny, float(info.smallest_subnormal), tiny / 2, math.sqrt(tiny) / 4, 1.0, -1.0]
    special += [most, -most, min(math.sqrt(most) * 2, most), 1 + float(info.eps)]
    special += [] if finite else [math.inf, -math.inf, math.nan]
    with np.errstate(all="ignore"):
        return kind.type(draw(st.one_of(st.sampled_from(special), ordinary)))


def sizes(large: bool = True) -> st.SearchStrategy[int]:
    """Sizes at which a kernel does something else than at the size before, and any small one."""
    return st.one_of(st.integers(0, 40), st.sampled_from(EDGES), st.sampled_from(LARGE if large else EDGES))


@st.composite
def layouts(draw: Any, large: bool = True) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """A shape and the order of its axes in memory: flat, 0-d, or of up to four axes in any order."""
    flat = sizes(large).map(lambda n: ((n,), (0,)))
    extents = st.lists(st.integers(0, 7), min_size=2, max_size=4).map(tuple)
    axes = extents.flatmap(lambda shape: st.tuples(st.just(shape), st.permutations(range(len(shape))).map(tuple)))
    return draw(st.one_of(flat, flat, axes, st.just(((), ()))))


def dense(values: np.ndarray, shape: tuple[int, ...], order: tuple[int, ...]) -> np.ndarray:
    """Flat values as an array of a shape whose axes lie in memory in that order, outermost first."""
    stored = values.reshape([shape[axis] for axis in order])
    return stored.transpose([order.index(axis) for axis in range(len(shape))])


@st.composite
def storage(draw: Any, params: tuple[str, ...] = DTYPES) -> tuple[str, str, str, str | None]:
    """The dtypes of p, g, v and the master of a tensor: every combination that LARS takes."""
    p = draw(st.sampled_from(params))
    real = np.dtype(arithmetic(p)).name
    g = draw(st.sampled_from([d for d in DTYPES if SIZES[d] <= SIZES[real]]))
    v = draw(st.sampled_from(sorted({real, p})))
    return p, g, v, draw(st.sampled_from([None, real])) if p != real else None


@st.composite
def hyperparameters(draw: Any, count: int) -> dict[str, Any]:
    """Numbers of one step over so many tensors."""

    def one_or_many(values: st.SearchStrategy[float]) -> Any:
        return draw(st.one_of(values, st.lists(values, min_size=count, max_size=count)))

    def positive(*usual: float) -> st.SearchStrategy[float]:
        return st.one_of(st.sampled_from(usual), st.floats(0, 4, width=32))

    return dict(
        lr=one_or_many(positive(0.1, 1.0, 0.0)),
        mu=draw(positive(0.9, 0.0, 1.0)),
        lars_coeff=draw(positive(0.001, 1.0)),
        lars_weight_decay=one_or_many(positive(0.0005, 0.5, 0.0)),
        epsilon=draw(positive(0.0, 1e-8, 0.5)),
        rescale_grad=draw(st.sampled_from([1.0, 1 / 128, 0.37, 3.0, 1024.0])),
    )


@st.composite
def lars_cases(
    draw: Any, max_tensors: int = 6, large: bool = True, params: tuple[str, ...] = DTYPES, max_steps: int = 2
) -> Case:
    """Lists of tensors of any mixture of dtypes, shapes and values, and a few steps with changing numbers."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    finite = draw(st.integers(0, 3)) > 0
    p: list = []
    g: list = []
    v: list = []
    m: list = []
    common = draw(st.one_of(st.none(), storage(params)))
    for _ in range(draw(st.integers(0, max_tensors))):
        shape, order = draw(layouts(large))
        dtypes = common or draw(storage(params))
        for slot, dtype in zip((p, g, v, m), dtypes, strict=True):
            values = None if dtype is None else draw(_values(math.prod(shape), dtype, finite, rng))
            slot.append(None if values is None else dense(values, shape, order))
        if m[-1] is not None and draw(st.booleans()):
            with np.errstate(all="ignore"):
                p[-1][...] = m[-1].astype(p[-1].dtype)
        if draw(st.integers(0, 9)) == 9:
            g[-1] = None
    steps = draw(st.lists(hyperparameters(len(p)), min_size=1, max_size=max_steps))
    choices = {
        "adapt": draw(st.sampled_from(["norms", "decay", "decay_and_norms"])),
        "norm_of": draw(st.sampled_from(["param", "master"])),
    }
    return Case(p, g, v, m if any(x is not None for x in m) else None, steps, choices)


@st.composite
def _values(draw: Any, size: int, dtype: str, finite: bool, rng: np.random.Generator) -> np.ndarray:
    """Normal values of a drawn magnitude, with a few nasty ones in between."""
    info = _info(dtype)
    root = math.sqrt(float(info.max))
    magnitudes = [1.0, 1.0, 1.0, 1e-3, 0.0, 1 / root, root / 100, float(info.tiny)]
    with np.errstate(all="ignore"):
        values = (rng.normal(size=size) * draw(st.sampled_from(magnitudes))).astype(dtype_of(dtype))
    for special in draw(st.lists(nasty_floats(dtype, finite), max_size=3)):
        if size:
            values[rng.integers(size)] = special
    return values


def _info(dtype: str) -> Any:
    if dtype == "bfloat16":
        import ml_dtypes

        return ml_dtypes.finfo(dtype_of(dtype))
    return np.finfo(dtype)
