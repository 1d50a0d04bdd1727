"""Hypothesis strategies: nasty numbers, lists of tensors, cases of a routine.

Strategies are cached by their arguments: Hypothesis takes longer to validate a new one than to draw from it.
"""

import math
import operator
from functools import cache
from typing import Any

import numpy as np
from hypothesis import strategies as st

from refopt.catalog import Hyper, Routine, Slot
from refopt.checks.dtypes import REMAINDERS, SIZES, arithmetic, numpy_dtype
from refopt.cpu.reduce import LANES, TILE
from refopt.gpu import tables
from refopt.oracle.exact.build import SIGNATURES, Numbers, Tensor, listed, step_of
from refopt.oracle.exact.cases import Case
from refopt.oracle.exact.examples import varied

DTYPES = tuple(SIZES)
Storage = tuple[str, str, str, str | None]


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


@st.composite
def storage(draw: Any, params: tuple[str, ...] = DTYPES, wide: bool = False) -> Storage:
    """The dtypes of p, g, the states and the master: all combinations that routines take, or with ``wide`` states."""
    p = draw(st.sampled_from(params))
    real = np.dtype(arithmetic(p)).name
    g = draw(st.sampled_from([d for d in DTYPES if SIZES[d] <= SIZES[real]]))
    v = draw(st.sampled_from(sorted({real} if wide else {real, p, *["bfloat16"] * (real == "float32")})))
    masters = [None, real, *REMAINDERS] if p == "bfloat16" else [None, real]
    return p, g, v, draw(st.sampled_from(masters)) if p != real else None


EVERY_KIND = storage()
# Those of `refopt.oracle.exact.build.SIGNATURES`, for laws that hold alike of all kinds: each other one is compiled.
KINDS = st.sampled_from([(p, g, v, *master, None)[:4] for p, g, v, *master in SIGNATURES])


@cache
def hyperparameters(routine: Routine, count: int) -> st.SearchStrategy[dict[str, Any]]:
    """Numbers of one step over ``count`` tensors."""

    def values(hyper: Hyper) -> st.SearchStrategy[float] | st.SearchStrategy[int]:
        if hyper.whole:
            return st.integers(0, int(min(hyper.below, 2.0**24)) - 1)
        default = hyper.other if hyper.default is None else hyper.default
        usual = st.sampled_from([default, *filter(hyper.allows, (0.5, 1.0, 0.0))])
        most = np.float32(min(4.0, hyper.below))
        most = np.nextafter(most, np.float32(0)) if most > hyper.below else most
        least = 2.0**-10 if hyper.positive else 0.0
        return usual | st.floats(least, float(most), exclude_max=hyper.below <= 4, width=32)

    def one_or_many(hyper: Hyper) -> Any:
        one = values(hyper)
        return st.one_of(one, st.lists(one, min_size=count, max_size=count)) if hyper.per_tensor else one

    return st.fixed_dictionaries({hyper.name: one_or_many(hyper) for hyper in routine.hypers})


FACTORS = st.sampled_from([1.0, 0.3, 1 / 65536, 3.0, 0.0, math.inf, math.nan])
FLAGS = st.sampled_from([0.0, 0.0, 1.0, math.inf, math.nan])
GATES = {"grad_factor": FACTORS, "found_inf": FLAGS}


def steps(routine: Routine, count: int, gate: tuple[str, ...] = ()) -> st.SearchStrategy[dict[str, Any]]:
    """Numbers of one step over ``count`` tensors, two in three times such that each affects the result.

    ``gate`` names what there is of a factor and a flag.
    """
    usual = st.just(step_of(routine)), st.just(step_of(routine) | varied(routine, count))
    both = st.fixed_dictionaries({name: GATES[name] for name in gate})
    return st.builds(operator.or_, st.one_of(*usual, hyperparameters(routine, count)), both)


@cache
def places(routine: Routine) -> st.SearchStrategy[Any]:
    """Addresses: how many elements off an aligned one each tensor lies, by turns; for all slots alike, or by slot."""
    each = st.lists(st.integers(0, 9), min_size=1, max_size=4)
    return st.one_of(each, st.dictionaries(st.sampled_from(routine.slot_names), each, min_size=1, max_size=2))


@st.composite
def cases(
    draw: Any, routine: Routine, least: int = 0, most: int = 6, kinds: st.SearchStrategy[Storage] = EVERY_KIND,
    max_steps: int = 2, large: bool = True, gated: bool = False, **fixed: Any,
) -> Case:
    """Lists of tensors, of one or two kinds of dtypes, any shapes and values, and steps with changing numbers.

    They print as calls of `refopt.oracle.exact.build.listed`, and become smaller when they fail. There are ``least`` to
    ``most`` tensors; with ``large``, those of routines with norms may be as large as a chunk.
    ``gated`` says that steps may have a factor and a flag. ``fixed`` has choices.
    """
    finite, large = draw(st.integers(0, 3)) > 0, large and not routine.elementwise
    each = tensors(routine, st.sampled_from(draw(st.lists(kinds, min_size=1, max_size=2))), large, finite)
    count = st.integers(least, most) | st.integers((least + most) // 2, most)
    drawn = [draw(each) for _ in range(draw(count))]
    gate = draw(st.lists(st.sampled_from(list(GATES)), unique=True)) if gated else ()
    given = draw(st.lists(steps(routine, len(drawn), tuple(gate)), min_size=1, max_size=max_steps))
    # Copies print as numbers, where what a strategy has drawn may print as how it was made.
    copies = [{n: [1 * y for y in x] if isinstance(x, list) else 1 * x for n, x in step.items()} for step in given]
    return draw(st.builds(listed, *map(st.just, (routine.name, drawn, copies)), choices(routine, **fixed)))


def choices(routine: Routine, **fixed: Any) -> st.SearchStrategy[dict[str, Any]]:
    """A value of each choice."""
    every = {name: (fixed[name],) if name in fixed else values for name, values in routine.choices.items()}
    return st.fixed_dictionaries({name: st.sampled_from(values) for name, values in every.items()})


@st.composite
def tensors(
    draw: Any, routine: Routine, kinds: st.SearchStrategy[Storage], large: bool = False, finite: bool = False
) -> Tensor:
    """One tensor. Two in three have ordinary numbers, so that each affects the result; one in ten has no gradient.

    As often as not, the master is the parameter, and an optional state is absent.
    """
    p, g, state, master = draw(kinds)
    shape, order = draw(layouts(around(chunk_of(p, g)) if large else ()))
    size, drawn, ordinary = math.prod(shape), {}, draw(st.sampled_from([True, True, False]))
    for slot in routine.slots:
        dtype = {"params": p, "grads": g, "master_params": master}.get(slot.name, state)
        optional = slot.optional and slot.name != "master_params"
        if slot.scalar:
            drawn[slot.name] = Numbers([1 * draw((RHO if slot.name == "rho" else POWERS) if ordinary else SCALARS)])
        elif dtype in REMAINDERS:
            drawn[slot.name] = Numbers(draw(st.lists(st.integers(0, 2**16 - 1), min_size=1, max_size=3)))
        elif slot.name == "master_params" and master and draw(st.booleans()):
            drawn[slot.name] = drawn["params"]
        elif dtype and not (optional and draw(st.booleans())):
            drawn[slot.name] = draw(numbers(dtype, size, finite, slot, ordinary))
    if draw(st.integers(0, 9)) == 9:
        del drawn["grads"]
    return Tensor((p, g, state, *([master] if master else [])), shape, order, drawn)


# One element of the arithmetic type: a power of beta, RAdam's rho, or anything, such as a limit of their ranges.
POWERS, RHO = st.floats(0.25, 0.9375, width=32), st.floats(3, 12, width=32)
SCALARS = st.one_of(st.sampled_from([0.9, 0.999, 0.5, 0.0, 1.0, 4.0, 5.0, 5.5, 900.0]), st.floats(0, 1, width=32))
ORDINARY = st.lists(st.floats(0.125, 8, width=32) | st.floats(-8, -0.125, width=32), min_size=1, max_size=3)


@st.composite
def numbers(draw: Any, dtype: str, size: int, finite: bool, slot: Slot, ordinary: bool) -> Numbers:
    """Elements of an array: numbers of ordinary magnitude, or of another and a few nasty ones among them."""
    ones = draw(ORDINARY) if slot.signed else [abs(x) for x in draw(ORDINARY)]
    if ordinary:
        factor = 2.0**-6 if slot.name == "mean_grad" else 1.0  # its square is less than the mean of squares
        return Numbers([x * factor for x in ones])
    info = _info(dtype)
    root = math.sqrt(float(info.max))
    factor = draw(st.sampled_from([1.0, 1e-3, 0.0, 1 / root, root / 100, float(info.tiny)]))
    nasty = draw(_few_nasty_floats(dtype, finite)) if size else []
    return Numbers([x * factor for x in ones], tuple((i % size, float(x)) for i, x in nasty))


@cache
def _few_nasty_floats(dtype: str, finite: bool) -> st.SearchStrategy[list[tuple[int, np.generic]]]:
    places = st.sampled_from([0, -1]) | st.integers(0, 40_000)
    return st.lists(st.tuples(places, nasty_floats(dtype, finite)), max_size=3)


def _info(dtype: str) -> Any:
    if dtype == "bfloat16":
        import ml_dtypes

        return ml_dtypes.finfo(numpy_dtype(dtype))
    return np.finfo(dtype)
