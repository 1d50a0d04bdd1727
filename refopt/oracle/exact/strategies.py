"""Hypothesis strategies: nasty numbers, lists of tensors, cases of a routine.

Strategies are cached by their arguments: Hypothesis takes longer to validate a new one than to draw from it.
"""

import math
from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np
from hypothesis import strategies as st

from refopt.catalog import Hyper, Routine, Slot
from refopt.checks.dtypes import SIZES, arithmetic, numpy_dtype
from refopt.cpu.reduce import LANES, TILE
from refopt.gpu import tables
from refopt.oracle.exact.cases import Case

DTYPES = tuple(SIZES)


def around(*lengths: int) -> tuple[int, ...]:
    """Each length, and those one element shorter and longer."""
    return tuple(sorted({n for length in lengths for n in (length - 1, length, length + 1)}))


def chunk_of(param: str, grad: str) -> int:
    """The elements of a chunk in kernels that compute norms, by the dtypes of parameter and gradient."""
    return tables.tiles_per_chunk(SIZES[param] + SIZES[grad]) * TILE


# A thread's four elements, a warp's 128, a row, a tile, two of each; then chunks for any dtypes.
EDGES = (0, 1, 2, *around(4, 8, LANES // 2, LANES, 2 * LANES, TILE, 2 * TILE))
CHUNKS = around(*{chunk_of(p, g) for p in DTYPES for g in DTYPES})


@cache
def nasty_floats(dtype: str, finite: bool = False) -> st.SearchStrategy[np.generic]:
    """Values that tend to cause errors: zeros of both signs, subnormal, tiny, huge, and inf and NaN unless finite."""
    kind = numpy_dtype(dtype)
    info = _info(dtype)
    tiny, most = float(info.tiny), float(info.max)
    ordinary = st.floats(-8, 8).filter(lambda x: x == 0 or abs(x) >= tiny)
    special = [0.0, -0.0, tiny, -tiny, float(info.smallest_subnormal), tiny / 2, math.sqrt(tiny) / 4, 1.0, -1.0]
    special += [most, -most, min(math.sqrt(most) * 2, most), 1 + float(info.eps)]
    special += [] if finite else [math.inf, -math.inf, math.nan]

    def typed(value: float) -> np.generic:
        with np.errstate(all="ignore"):
            return kind.type(value)

    return st.one_of(st.sampled_from(special), ordinary).map(typed)


@cache
def sizes(chunks: tuple[int, ...] = CHUNKS) -> st.SearchStrategy[int]:
    """Sizes at which a kernel takes another path than at the size before, and any small one."""
    return st.one_of(st.integers(0, 40), st.sampled_from(EDGES), st.sampled_from(chunks or EDGES))


@cache
def layouts(chunks: tuple[int, ...] = ()) -> st.SearchStrategy[tuple[tuple[int, ...], tuple[int, ...]]]:
    """A shape and the order of its axes in memory: flat, 0-d, or up to four axes in any order."""
    flat = sizes(chunks).map(lambda n: ((n,), (0,)))
    extents = st.lists(st.integers(0, 7), min_size=2, max_size=4).map(tuple)
    axes = extents.flatmap(lambda shape: st.tuples(st.just(shape), st.permutations(range(len(shape))).map(tuple)))
    return st.one_of(flat, flat, axes, st.just(((), ())))


def dense(values: np.ndarray, shape: tuple[int, ...], order: tuple[int, ...]) -> np.ndarray:
    """Flat values as an array of this shape, with its axes in this order in memory, outermost first."""
    stored = values.reshape([shape[axis] for axis in order])
    return stored.transpose([order.index(axis) for axis in range(len(shape))])


@st.composite
def storage(draw: Any, params: tuple[str, ...] = DTYPES) -> tuple[str, str, str, str | None]:
    """The dtypes of p, g, the states and the master of a tensor: every combination that routines take."""
    p = draw(st.sampled_from(params))
    real = np.dtype(arithmetic(p)).name
    g = draw(st.sampled_from([d for d in DTYPES if SIZES[d] <= SIZES[real]]))
    v = draw(st.sampled_from(sorted({real, p})))
    masters = [None, real, "uint16"] if p == "bfloat16" else [None, real]
    return p, g, v, draw(st.sampled_from(masters)) if p != real else None


USUAL = {
    "lr": (0.1, 1.0, 0.0), "mu": (0.9, 0.0, 1.0), "lars_coeff": (0.001, 1.0), "lars_weight_decay": (0.0005, 0.5, 0.0),
    "l2_decay": (0.0005, 0.5, 0.0), "epsilon": (0.0, 1e-8, 0.5), "beta1": (0.9, 0.0, 0.5), "beta2": (0.999, 0.0, 0.5),
    "rescale_grad": (1.0, 1 / 128, 0.37, 3.0, 1024.0),
}


@cache
def hyperparameters(routine: Routine, count: int) -> st.SearchStrategy[dict[str, Any]]:
    """Numbers of one step over ``count`` tensors."""

    def values(hyper: Hyper) -> st.SearchStrategy[float] | st.SearchStrategy[int]:
        if hyper.whole:
            return st.integers(0, int(min(hyper.below, 2.0**24)) - 1)
        default = hyper.other if hyper.default is None else hyper.default
        table = [x for x in USUAL.get(hyper.name, (default, 0.5)) if hyper.allows(x)]
        usual = st.sampled_from(table or [default])
        if hyper.positive:
            return usual
        most = np.float32(min(4.0, hyper.below))
        most = np.nextafter(most, np.float32(0)) if most > hyper.below else most
        return st.one_of(usual, st.floats(0, float(most), exclude_max=hyper.below <= 4, width=32))

    def one_or_many(hyper: Hyper) -> Any:
        one = values(hyper)
        return st.one_of(one, st.lists(one, min_size=count, max_size=count)) if hyper.per_tensor else one

    return st.fixed_dictionaries({hyper.name: one_or_many(hyper) for hyper in routine.hypers})


@st.composite
def cases(
    draw: Any,
    routine: Routine,
    max_tensors: int = 6,
    large: bool = True,
    params: tuple[str, ...] = DTYPES,
    max_steps: int = 2,
) -> Case:
    """Lists of at least one tensor, of any mixture of dtypes, shapes and values, and steps with changing numbers.

    With ``large``, tensors of routines with norms may be as large as a chunk.
    """
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    large = large and not routine.elementwise
    finite = draw(st.integers(0, 3)) > 0
    slots: dict[str, list[Any]] = {name: [] for name in routine.slot_names}
    common = draw(st.one_of(st.none(), storage(params)))
    optional = _optional(routine)
    for _ in range(draw(st.integers(1, max_tensors))):
        p, g, state, master = common or draw(storage(params))
        shape, order = draw(layouts(around(chunk_of(p, g)) if large else ()))
        absent = draw(_some(optional))
        for name, arrays in slots.items():
            dtype = {"params": p, "grads": g, "master_params": master}.get(name, state)
            if _slot(routine, name).scalar:
                arrays.append(draw(scalars(np.dtype(arithmetic(p)).name)))
            elif dtype is None or name in absent:
                arrays.append(None)
            else:
                arrays.append(dense(draw(_values(math.prod(shape), dtype, finite, rng)), shape, order))
        if master and master != "uint16" and draw(st.booleans()):
            _round_into(slots["params"][-1], slots["master_params"][-1])
        if draw(st.integers(0, 9)) == 9:
            slots["grads"][-1] = None
    drawn = {name: _unless_absent(_slot(routine, name), arrays) for name, arrays in slots.items()}
    numbers = hyperparameters(routine, len(slots["params"]))
    steps = draw(st.lists(numbers, min_size=1, max_size=max_steps))
    return Case(routine, drawn, steps, draw(_choices(routine)))


def _choices(routine: Routine) -> st.SearchStrategy[dict[str, Any]]:
    """A value of each choice."""
    return st.fixed_dictionaries({name: st.sampled_from(values) for name, values in routine.choices.items()})


def _round_into(param: np.ndarray, master: np.ndarray) -> None:
    with np.errstate(all="ignore"):
        param[...] = master.astype(param.dtype)


@st.composite
def scalars(draw: Any, real: str) -> np.ndarray:
    """One element of the arithmetic type: a power of beta, a limit of its range, or RAdam's rho."""
    usual = st.sampled_from([0.9, 0.999, 0.5, 0.0, 1.0, 4.0, 5.0, 5.5, 900.0])
    value = draw(st.one_of(usual, st.floats(0, 1, width=32)))
    return np.full(draw(st.sampled_from([(), (1,)])), value, real)


@st.composite
def _some(draw: Any, names: Sequence[str]) -> set[str]:
    return {name for name in names if draw(st.booleans())}


def _optional(routine: Routine) -> list[str]:
    """The states that may be absent."""
    return [name for name in routine.states if _slot(routine, name).optional]


def _unless_absent(slot: Slot, arrays: list[Any]) -> list[Any] | None:
    """The list of a slot; ``None`` for an optional one that no tensor has."""
    return None if slot.optional and all(x is None for x in arrays) else arrays


def _slot(routine: Routine, name: str) -> Slot:
    return next(slot for slot in routine.slots if slot.name == name)


@st.composite
def _values(draw: Any, size: int, dtype: str, finite: bool, rng: np.random.Generator) -> np.ndarray:
    """Normal values of a drawn magnitude, with a few nasty ones in between."""
    if dtype == "uint16":  # a remainder
        return rng.integers(0, 2**16, size, np.uint16)
    info = _info(dtype)
    root = math.sqrt(float(info.max))
    magnitudes = [1.0, 1.0, 1.0, 1e-3, 0.0, 1 / root, root / 100, float(info.tiny)]
    with np.errstate(all="ignore"):
        values = (rng.normal(size=size) * draw(st.sampled_from(magnitudes))).astype(numpy_dtype(dtype))
    for special in draw(_few_nasty_floats(dtype, finite)):
        if size:
            values[rng.integers(size)] = special
    return values


@cache
def _few_nasty_floats(dtype: str, finite: bool) -> st.SearchStrategy[list[np.generic]]:
    return st.lists(nasty_floats(dtype, finite), max_size=3)


def _info(dtype: str) -> Any:
    if dtype == "bfloat16":
        import ml_dtypes

        return ml_dtypes.finfo(numpy_dtype(dtype))
    return np.finfo(dtype)
