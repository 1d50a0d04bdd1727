"""N6: sums of squares are a tree of tiles: which elements meet first is settled from outside, by triplets."""

import math
import operator
from collections.abc import Callable, Mapping
from functools import cache
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
import pytest
from evidence.triplets import LARGE, Triplet, triplets, values
from hypothesis import example, given, settings
from hypothesis import strategies as st

from laws.marks import few, of, pairs
from laws.routines import WITH_NORMS
from refopt import cpu, gpu
from refopt.catalog import ROUTINES
from refopt.checks.dtypes import arithmetic, numpy_dtype
from refopt.cpu.reduce import TILE
from refopt.oracle.exact.build import SIGNATURES, make, remainders, step_of
from refopt.oracle.exact.cases import Case
from refopt.oracle.exact.laws import reference, same_bits_as_reference
from refopt.oracle.exact.placed import Placed, kernels
from refopt.oracle.exact.strategies import chunk_of
from refopt.oracle.ulp import same_bits

pytestmark = pytest.mark.clause("N6")

# Of p, g, states and master.
DTYPES = [("float32", "float32", "float32"), ("float64", "float64", "float64"), ("float16", "float16", "float32"),
          ("bfloat16", "bfloat16", "float32"), ("float16", "float16", "float32", "float32"),
          ("bfloat16", "float32", "float32", "uint16")]
SIZES = 5, 257, 1025, 2100


class Norm(NamedTuple):
    """A routine that shows a sum of squares: that of one slot, while another has one element that is not 0.

    That element is where the large one is, where the step leaves what ``exceeds`` looks at.
    """

    routine: str
    of: str
    other: tuple[str, float] | None
    exceeds: Callable[[dict[str, list[Any]], int, int], Any]
    numbers: Mapping[str, float]
    choices: Mapping[str, Any] = MappingProxyType({})
    steps: tuple[float, ...] = (1.0,)  # the lr of each; 0 moves nothing

    def __str__(self) -> str:
        return "-".join([self.routine, self.of, *map(str, self.choices.values()), *["second"] * (len(self.steps) > 1)])


OF_LARS = dict(mu=0.0, lars_coeff=1.0, lars_weight_decay=0.0)
OF_LAMB = dict(beta1=0.5, beta2=0.5, epsilon=1.0, weight_decay=0.0)


def larger(after, i, at):
    """LARS with a gradient of 1: the velocity is the parameter's norm."""
    return after["velocities"][i][at] > LARGE


def smaller(after, i, at):
    """LARS with a parameter of 1.5: the velocity is its square over the gradient's norm."""
    return after["velocities"][i][at] < LARGE


def left(after, i, at):
    """LAMB with a parameter and a direction of 1.5: only a ratio of 1 leaves 0."""
    return after["params"][i][at] != 0


def second_moment(after, i, at):
    """NovoGrad's first, which is the sum itself."""
    return after["second_moment"][i][0] > LARGE**2


NORMS = [Norm("lars_momentum", "params", ("grads", 1.0), larger, OF_LARS),
         Norm("lars_momentum", "params", ("grads", 1.0), larger, OF_LARS, {"norm_of": "master"}),
         Norm("lars_momentum", "params", ("grads", 1.0), larger, OF_LARS, steps=(0.0, 1.0)),
         Norm("lars_momentum", "grads", ("params", LARGE), smaller, OF_LARS),
         Norm("lamb", "params", ("moment1", LARGE), left, OF_LAMB, {"always_adapt": True}),
         Norm("lamb", "moment1", ("params", LARGE), left, OF_LAMB, {"always_adapt": True}),
         Norm("novograd", "grads", None, second_moment, dict(beta1=0.5, beta2=0.5, epsilon=1.0))]
ROWS = [pytest.param(norm, dtypes, id=f"{norm}-{'-'.join(dtypes)}") for norm in NORMS
        for dtypes in DTYPES if dtypes[3:] or "master" not in norm.choices.values()]
FORMS = [(norm, form, dtypes) for norm, dtypes in (row.values for row in ROWS)
         for form in ROUTINES[norm.routine].forms if len(norm.steps) == 1 or form == "carried_norm"]
ALWAYS = "two_launches", "merged"  # the others, on the executor, in make test-long


def row(norm: Norm, form: str, dtypes: tuple[str, ...], *marks: Any) -> Any:
    return pytest.param(norm, form, dtypes, id=f"{norm}-{form}-{'-'.join(dtypes)}", marks=marks)


FORMS = [row(norm, form, dtypes, *[pytest.mark.slow] * (form not in ALWAYS and dtypes != SIGNATURES[0]))
         for norm, form, dtypes in FORMS]


def case_of(norm: Norm, dtypes: tuple[str, ...], tensors: list) -> Case:
    """A case with a tensor for each triplet, all of which come with a size. Masters are the parameters' equals."""
    routine, real = ROUTINES[norm.routine], arithmetic(dtypes[0])
    slots: dict[str, Any] = {}
    for slot in routine.slots:
        if slot.scalar:
            slots[slot.name] = [np.full(1, 0 if slot.name == "second_moment" else 0.5, real) for _ in tensors]
            continue
        if slot.name == "master_params":
            exact = dtypes[3:] and [np.zeros(p.shape, "u2") if dtypes[3] == "uint16" else p.astype(real)
                                    for p in slots["params"]]
            slots[slot.name] = exact or None
            continue
        dtype = numpy_dtype(dtypes[{"params": 0, "grads": 1}.get(slot.name, 2)])
        slots[slot.name] = [np.zeros(size, dtype) for size, _ in tensors]
        for x, (size, triplet) in zip(slots[slot.name], tensors, strict=True):
            if slot.name == norm.of:
                x[:] = values(triplet, size, dtype, real)
            elif norm.other and slot.name == norm.other[0]:
                x[triplet.large] = norm.other[1]
    return Case(routine, slots, [{"lr": lr, **norm.numbers} for lr in norm.steps], dict(norm.choices))


def wrong(norm: Norm, dtypes: tuple[str, ...], tensors: list, run: Callable[[Case], Any]) -> list[str]:
    """The triplets whose elements meet in another order than the contract has it."""
    after = run(case_of(norm, dtypes, tensors))
    return [f"{size} elements: {triplet}"
            for i, (size, triplet) in enumerate(tensors) if norm.exceeds(after, i, triplet.large) != triplet.exceeds]


def near(dtypes: tuple[str, ...]) -> list[int]:
    """Sizes before and behind the end of one chunk and of two."""
    chunk = chunk_of(*dtypes[:2])
    return [chunk - 1, chunk + 300, 2 * chunk - 1, 2 * chunk + 300]


@cache
def triplet_of(size: int, first: int = 0) -> st.SearchStrategy[tuple[int, Triplet]]:
    """A tensor of this size and any three of its elements of which one is at ``first`` or behind."""
    return st.tuples(st.just(size), st.sampled_from(triplets(size, "", first=first)))


def tensors_of(dtypes: tuple[str, ...], most: int, ends: int) -> st.SearchStrategy[list[tuple[int, Triplet]]]:
    """Up to ``most`` tensors of several tiles, and up to ``ends`` with an element in the last tile of a chunk."""
    small, large = st.one_of(*map(triplet_of, SIZES)), st.one_of(*(triplet_of(n, (n - 1) // TILE * TILE)
                                                                   for n in near(dtypes)))
    return st.builds(operator.add, up_to(most, small), up_to(ends, large))


def up_to(most: int, each: st.SearchStrategy[Any]) -> st.SearchStrategy[list[Any]]:
    """Any number of them, alike likely."""
    return st.integers(0, most).flatmap(lambda count: st.lists(each, min_size=count, max_size=count))


@pytest.mark.parametrize(("norm", "dtypes"), ROWS)
@few(4, data=st.data())
def test_the_reference_adds_by_the_tree(norm, dtypes, data):
    """The reference adds squares in the order of the tree, also across the ends of chunks."""
    assert not wrong(norm, dtypes, data.draw(tensors_of(dtypes, 80, 5)), reference)


@pytest.mark.parametrize(("norm", "form", "dtypes"), FORMS)
@given(data=st.data())
@settings(max_examples=2)  # the first is of no tensors
def test_the_kernels_add_by_the_tree(machine, norm, form, dtypes, data):
    """So do the kernels of each form."""
    most = (6, 1) if machine.name == "executor" else (160, 160)
    assert not wrong(norm, dtypes, data.draw(tensors_of(dtypes, *most)), kernels(form, machine))


# The gradient check.


def norm_of_reference(grads):
    return cpu.check_gradients(grads).grad_norm[0]


def norm_on(machine):
    def norm(grads):
        with gpu.use(machine.name):
            check = gpu.gradient_check([None if g is None else Placed(machine, g).array for g in grads])
        check()
        machine.synchronize()
        return check.grad_norm.copy_to_host()[0]

    return norm


def wrong_of_check(dtype: str, tensors: list[tuple[int, Triplet]], norm: Callable) -> list[str]:
    real = arithmetic(dtype)
    return [f"{size} elements: {triplet}" for size, triplet in tensors
            if (norm([values(triplet, size, numpy_dtype(dtype), real)]) > LARGE) != triplet.exceeds]


one_dtype = pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "bfloat16"])


@one_dtype
@given(data=st.data())
def test_the_reference_checks_gradients_by_the_tree(dtype, data):
    """The gradient check of the reference adds by the same tree."""
    assert not wrong_of_check(dtype, data.draw(tensors_of((dtype, dtype), 60, 10)), norm_of_reference)


@one_dtype
@few(4, data=st.data())
def test_the_kernels_check_gradients_by_the_tree(machine, dtype, data):
    """The gradient check of the kernels adds by the same tree."""
    most = (6, 1) if machine.name == "executor" else (80, 80)
    assert not wrong_of_check(dtype, data.draw(tensors_of((dtype, dtype), *most)), norm_on(machine))


# Large tensors, and blocks as large as a GPU's.


@pytest.mark.gpu
@pytest.mark.parametrize("dtypes", [*SIGNATURES, *remainders()], ids="-".join)
@of(pairs(WITH_NORMS))
@given(sizes=st.lists(st.integers(2**20, 2**21 + 3), min_size=1, max_size=2))
@example([2**22 - 1, 5, 2**21 + 3])
@settings(max_examples=2)
def test_trees_of_more_than_one_level_of_nodes(routine, form, dtypes, sizes):
    """For millions of elements, in two steps, whichever norm is used."""
    for norm_of in routine.choices.get("norm_of", [None]):
        choices = {} if norm_of is None else {"norm_of": norm_of}
        case = make(routine, sizes, dtypes, steps=[step_of(routine)] * 2, **choices)
        same_bits_as_reference(kernels(form, gpu.device("gpu")), case)


@pytest.mark.clause("N3")
@pytest.mark.gpu
@pytest.mark.slow
def test_more_elements_than_an_int32_counts():
    """All offsets are 64 bits wide."""
    from numba import cuda

    size = 2**31 + 1025
    p, g, v = (cuda.device_array(size, np.float32) for _ in range(3))

    @cuda.jit
    def fill(p, g, v):
        for i in range(cuda.grid(1), p.size, cuda.gridsize(1)):
            p[i] = np.float32(i % 7 - 3) / np.float32(4)
            g[i] = np.float32(i % 5 + 1) / np.float32(8)
            v[i] = np.float32(0)

    fill[4096, 256](p, g, v)
    lr, coeff = 0.5, 0.75
    gpu.merged_lars_momentum([p], [g], [v], lr=lr, mu=0.0, lars_coeff=coeff, lars_weight_decay=0.0)

    def squares(values):
        counts = [size // len(values) + (k < size % len(values)) for k in range(len(values))]
        return sum(n * x * x for n, x in zip(counts, values, strict=True))

    p_norm = math.sqrt(squares([(k - 3) / 4 for k in range(7)]))
    rate = lr * coeff * p_norm / math.sqrt(squares([(k + 1) / 8 for k in range(5)]))
    local = v[0:1].copy_to_host()[0] * np.float32(8)  # g[0] is 1/8, and the product is exact
    assert local == pytest.approx(rate, rel=1e-5)
    for start in (0, 2**30, 2**31 - 512, 2**31, size - 1024):
        i = np.arange(start, start + 1024 if start + 1024 <= size else size)
        gradient, before = np.float32(i % 5 + 1) / np.float32(8), np.float32(i % 7 - 3) / np.float32(4)
        velocity = np.float32(local) * gradient
        assert same_bits(v[start : start + i.size].copy_to_host(), velocity).all()
        assert same_bits(p[start : start + i.size].copy_to_host(), before - velocity).all()
