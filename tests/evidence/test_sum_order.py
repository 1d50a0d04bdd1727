"""The order of every sum of squares, settled from outside: which elements meet first, as docs/numerics.md has it."""

import importlib
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
import pytest

from evidence.other_sums import OTHERS, by_tile, halves, in_order
from evidence.triplets import LARGE, Triplet, across, triplets, values
from refopt import cpu, gpu
from refopt.catalog import ROUTINES
from refopt.checks.dtypes import arithmetic, numpy_dtype
from refopt.oracle.exact.cases import Case
from refopt.oracle.exact.laws import reference
from refopt.oracle.exact.placed import Placed, kernels
from refopt.oracle.exact.strategies import chunk_of

# Of p, g, states and master.
DTYPES = [
    ("float32", "float32", "float32"),
    ("float64", "float64", "float64"),
    ("float16", "float16", "float32"),
    ("bfloat16", "bfloat16", "float32"),
    ("float16", "float16", "float32", "float32"),
    ("bfloat16", "float32", "float32", "uint16"),
]
SIZES = 5, 257, 1025, 2100
ON_GPU = 40  # triplets of each size; on the executor there is one


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


NORMS = [
    Norm("lars_momentum", "params", ("grads", 1.0), larger, OF_LARS),
    Norm("lars_momentum", "params", ("grads", 1.0), larger, OF_LARS, {"norm_of": "master"}),
    Norm("lars_momentum", "params", ("grads", 1.0), larger, OF_LARS, steps=(0.0, 1.0)),
    Norm("lars_momentum", "grads", ("params", LARGE), smaller, OF_LARS),
    Norm("lamb", "params", ("moment1", LARGE), left, OF_LAMB, {"always_adapt": True}),
    Norm("lamb", "moment1", ("params", LARGE), left, OF_LAMB, {"always_adapt": True}),
    Norm("novograd", "grads", None, second_moment, dict(beta1=0.5, beta2=0.5, epsilon=1.0)),
]
ROWS = [
    pytest.param(norm, dtypes, id=f"{norm}-{'-'.join(dtypes)}")
    for norm in NORMS for dtypes in DTYPES if dtypes[3:] or "master" not in norm.choices.values()
]  # fmt: skip
FORMS = [
    (norm, form, dtypes) for norm, dtypes in (row.values for row in ROWS) for form in ROUTINES[norm.routine].forms
    if len(norm.steps) == 1 or form == "carried_norm"
]  # fmt: skip
ALWAYS = "two_launches", "merged"  # the others, on the executor, in make test-long


def row(norm: Norm, form: str, dtypes: tuple[str, ...], *marks: Any) -> Any:
    return pytest.param(norm, form, dtypes, id=f"{norm}-{form}-{'-'.join(dtypes)}", marks=marks)


AROUND_CHUNKS = [
    row(norm, form, dtypes, *[pytest.mark.slow] * (form not in ALWAYS or norm.of != "grads"))
    for norm, form, dtypes in FORMS
]
FORMS = [row(*each) for each in FORMS]


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
                                    for p in slots["params"]]  # fmt: skip
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
    return [
        f"{size} elements: {triplet}" for i, (size, triplet) in enumerate(tensors)
        if norm.exceeds(after, i, triplet.large) != triplet.exceeds
    ]  # fmt: skip


def near(dtypes: tuple[str, ...]) -> list[int]:
    """Sizes before and behind the end of one chunk and of two."""
    chunk = chunk_of(*dtypes[:2])
    return [chunk - 1, chunk + 300, 2 * chunk - 1, 2 * chunk + 300]


def at_the_end(size: int, seed: str, count: int) -> list[tuple[int, Triplet]]:
    """Triplets that have an element in the last tile."""
    return [(size, triplet) for triplet in triplets(size, seed, count, first=(size - 1) // 1024 * 1024)]


@pytest.mark.clause("N6")
@pytest.mark.parametrize(("norm", "dtypes"), ROWS)
def test_of_the_reference(norm, dtypes):
    for size, some in {3: 10, 5: 10, 257: 40, 1025: 40, 4097: 30, 9000: 5}.items():
        tensors = [(size, triplet) for triplet in triplets(size, f"{norm} {dtypes} {size}", some)]
        assert len(tensors) >= 2 and not wrong(norm, dtypes, tensors, reference)


@pytest.mark.clause("N6")
@pytest.mark.parametrize(("norm", "form", "dtypes"), FORMS)
def test_of_the_kernels(machine, norm, form, dtypes):
    tensors = []
    for size in SIZES:
        count = 1 if machine.name == "executor" else ON_GPU
        tensors += [(size, triplet) for triplet in triplets(size, f"{norm} {form} {dtypes} {size}", count)]
    assert not wrong(norm, dtypes, tensors, kernels(form, machine))


@pytest.mark.clause("N6")
@pytest.mark.parametrize(("norm", "form", "dtypes"), AROUND_CHUNKS)
def test_around_chunks(machine, norm, form, dtypes):
    tensors = []
    for size in near(dtypes)[1:2] if machine.name == "executor" else near(dtypes):
        tensors += at_the_end(size, f"{norm} {form} {dtypes}", 1 if machine.name == "executor" else ON_GPU)
    assert not wrong(norm, dtypes, tensors, kernels(form, machine))


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
    return [
        f"{size} elements: {triplet}" for size, triplet in tensors
        if (norm([values(triplet, size, numpy_dtype(dtype), real)]) > LARGE) != triplet.exceeds
    ]  # fmt: skip


one_dtype = pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "bfloat16"])


@pytest.mark.clause("N6")
@one_dtype
def test_of_a_gradient_check_by_the_reference(dtype):
    for size in (3, *SIZES, *near((dtype, dtype))):
        tensors = [(size, triplet) for triplet in triplets(size, f"{dtype} {size}", 60)]
        assert tensors and not wrong_of_check(dtype, tensors, norm_of_reference)


@pytest.mark.clause("N6")
@one_dtype
def test_of_a_gradient_check_by_the_kernels(machine, dtype):
    on_executor, sizes = machine.name == "executor", near((dtype, dtype))
    tensors = []
    for size in SIZES:
        tensors += [(size, t) for t in triplets(size, f"{dtype} {size}", 2 if on_executor else ON_GPU)]
    for size in sizes[1:2] if on_executor else sizes:
        tensors += at_the_end(size, dtype, 2 if on_executor else ON_GPU)
    assert not wrong_of_check(dtype, tensors, norm_on(machine))


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


@pytest.mark.clause("N7")
@pytest.mark.parametrize("count", [3, 4, 7, 33, 100, 1025])
def test_of_tensors_by_the_reference(count):
    assert not wrong_of_tensors(count, between_tensors(count, str(count), 60), norm_of_reference)


@pytest.mark.clause("N7")
@pytest.mark.parametrize("count", [3, 7, 33, 100])
def test_of_tensors_by_the_kernels(machine, count):
    some = between_tensors(count, f"kernels {count}", 8 if machine.name == "executor" else 100)
    assert not wrong_of_tensors(count, some, norm_on(machine))


# That any other tree is seen.


@pytest.mark.parametrize("name", OTHERS)
def test_another_order_is_seen(monkeypatch, name):
    """By the gradient check, and by each routine of the triplets that the check sees it by."""
    size, dtypes = 5000, DTYPES[0]
    for module in ("lars_momentum", "lamb", "novograd", "gradient_check"):
        monkeypatch.setattr(importlib.import_module(f"refopt.cpu.{module}"), "sum_of_squares", OTHERS[name])
    some = [(size, triplet) for triplet in triplets(size, name)]
    seen = [one for one in some if wrong_of_check(dtypes[0], [one], norm_of_reference)]
    assert seen
    for norm in NORMS:
        if "master" not in norm.choices.values() and len(norm.steps) == 1:
            assert wrong(norm, dtypes, seen[:10], reference), norm


def test_the_contract_is_not_another_order(monkeypatch):
    """What the others are made of, put together as the contract has it, is right."""
    monkeypatch.setattr(cpu.gradient_check, "sum_of_squares", by_tile())
    assert not wrong_of_check("float32", [(5000, triplet) for triplet in triplets(5000, "")], norm_of_reference)


@pytest.mark.parametrize("other", [in_order, halves, np.sum])
def test_another_order_of_tensors_is_seen(monkeypatch, other):
    monkeypatch.setattr(cpu.gradient_check, "tree_sum", other)
    assert wrong_of_tensors(33, between_tensors(33, "", 200), norm_of_reference)
