"""Muon by the oracle: matrices alone, the bound on its iterations, and what of wrong steps is found."""

import re
from functools import partial

import numpy as np
import pytest

from refopt import cpu, oracle
from refopt.catalog import KNOWN
from refopt.checks.dtypes import numpy_dtype
from refopt.cpu import newton_schulz
from refopt.cpu.muon import COEFFICIENTS, norm_of
from refopt.cpu.newton_schulz import PRESETS
from refopt.oracle.bound import iterations, sums
from refopt.oracle.bound.iterations import allowance, half_a_unit, perturbed
from refopt.oracle.laws import matrices
from refopt.oracle.subjects.function import Function
from refopt.oracle.trial import Trial

FIVE = [COEFFICIENTS] * 5
ROUNDED = 2.0**-24, 2.0**-20


def spread(shape, least, seed=0):
    """A matrix whose singular values are from least to 1, in equal ratios."""
    rng, small = np.random.default_rng(seed), min(shape)
    left, right = (np.linalg.qr(rng.standard_normal((n, small)))[0] for n in shape)
    return left * np.geomspace(1, least, small) @ right.T


def iterated(u, triples=FIVE, *, rounded=lambda x: x, unfused=lambda x: x, product=np.matmul):
    """The iterations in fp64, with a rounding after each stage, and within it."""
    return standard(rounded(rounded(u) / np.linalg.norm(u)), triples, rounded, unfused, product)


def standard(x, triples, rounded, unfused, product):
    for a, b, c in triples:
        square = rounded(product(x, x.T))
        polynomial = rounded(unfused(b * square) + unfused(product(unfused(c * square), square)))
        x = rounded(unfused(a * x) + unfused(product(polynomial, x)))
    return x


def to_bf16(x):
    return x.astype(np.float32).astype(numpy_dtype("bfloat16")).astype(np.float64)


def bounded(*of, **named):
    """A matrix after the iterations, and by how much each element may be off."""
    x, off = perturbed(*of, **named)
    return x, allowance(off)


def ratio(u, got, compute="bfloat16", triples=FIVE, restarts=None):
    """The largest error over its bound."""
    value, bound = bounded(u, np.zeros(u.shape), triples, 1e-7, compute, ROUNDED, restarts=restarts)
    return np.max(abs(got - value) / bound)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
def test_half_a_unit_in_the_last_place(dtype):
    """Nothing is rounded by more, and the middle of two neighbours is by as much."""
    kind = numpy_dtype(dtype)
    numbers = np.random.default_rng(1).standard_normal(999) * 2.0 ** np.random.default_rng(2).integers(-30, 9, 999)
    rounded = numbers.astype(kind).astype(np.float64)
    inside = np.isfinite(rounded)
    assert (abs(rounded - numbers) <= half_a_unit(numbers, dtype))[inside].all()
    integers = rounded.astype(kind).view(f"i{kind.itemsize}")
    middles = (rounded + (integers + 1).view(kind).astype(np.float64)) / 2
    assert np.array_equal(abs(middles - rounded)[inside], half_a_unit(middles, dtype)[inside])
    assert half_a_unit(0.0, dtype) == 0


@pytest.mark.parametrize("compute", ["bfloat16", "float32"])
@pytest.mark.parametrize("shape", [(6, 9), (9, 6), (5, 5)])
def test_an_error_arrives_as_the_derivative_has_it(shape, compute, monkeypatch):
    """Of the norm alone, which is sure: the others are 0."""
    u = spread(shape, 0.2)
    monkeypatch.setattr(iterations, "half_a_unit", lambda x, dtype: 0 * np.asarray(x))
    monkeypatch.setattr(iterations, "TENSOR_CORE", 0.0)
    monkeypatch.setattr(iterations, "DELTA", 2.0)  # with which random roundings count nothing
    value, bound = bounded(u, np.zeros(shape), FIVE, 1e-7, compute, (0.0, 2.0**-20))
    assert np.allclose(value, iterated(u), rtol=1e-12, atol=1e-12)
    x = u / np.linalg.norm(u)
    off = iterated_from(x * (1 + 2.0**-20)) - iterated_from(x * (1 - 2.0**-20))
    assert np.allclose(bound, abs(off) / 2, rtol=1e-5, atol=1e-12)


iterated_from = partial(standard, triples=FIVE, rounded=np.asarray, unfused=np.asarray, product=np.matmul)


def test_the_deviation_is_that_of_random_roundings():
    """Uniform errors of up to half a unit at every stage: within a fifth of what the bound has for them."""
    u, rng = spread((12, 20), 0.1), np.random.default_rng(5)

    def off(x):
        return x + rng.uniform(-1, 1, x.shape) * half_a_unit(x, "bfloat16")

    def symmetric(x):
        moved = off(x)
        return np.triu(moved) + np.triu(moved, 1).T if x.shape == (12, 12) else moved

    value, bound = bounded(u, np.zeros(u.shape), FIVE, 1e-7, "bfloat16", ROUNDED)
    runs = np.array([iterated(u, rounded=symmetric, unfused=symmetric) - value for _ in range(200)])
    draws = iterations.DRAWS
    t = draws / 2 * ((2 / iterations.DELTA) ** (2 / draws) - 1)
    share = np.sqrt(np.mean(runs**2)) / (np.sqrt(np.mean(bound**2)) / np.sqrt(2 * t))
    assert 0.7 < share < 1.1  # the bound has room for the norm as well
    assert (abs(runs) <= bound).all()


@pytest.mark.parametrize("shape", [(1, 1), (1, 9), (7, 9), (24, 40), (48, 32)])
@pytest.mark.parametrize("least", [0.05, 0.3])
def test_right_spellings_are_within(shape, least):
    u = to_bf16(spread(shape, least))
    for unfused in (to_bf16, lambda x: x):
        assert ratio(u, iterated(u, rounded=to_bf16, unfused=unfused)) < 0.9
    assert ratio(u, iterated(u)) < 0.2


def in_bf16(u, triples=FIVE, **named):
    return iterated(u, triples, rounded=to_bf16, **named)


def without_tail(x, y):
    return x[:, :-8] @ y[:-8]


KEPT, OLD, MIRRORED = range(3)  # what is wrong: Q at a restart, R of the x before it, a square and its other triangle
POLAR = PRESETS["polar_express"]


def by_gram(u, restarts=(2,), wrong=None, applied=True, least=0.0, product=np.matmul):
    """Iterations by Gram matrices in fp64 with roundings to fp16."""
    if u.shape[0] > u.shape[1]:
        return by_gram(u.T, restarts, wrong, applied, least, product).T
    half = lambda x: x.astype(np.float16).astype(np.float64)  # noqa: E731
    below = lambda x: np.tril(half(x)) + np.tril(half(x), -1).T  # noqa: E731
    square = lambda x: below(x.T) if wrong == MIRRORED else below(x)  # noqa: E731
    norm = np.linalg.norm(u)
    x, q = half(u / (norm + least if wrong == "added" else max(norm, least))), None
    if 4 * u.shape[1] < 5 * u.shape[0]:
        return standard(x, POLAR, half, lambda x: x, product)
    r = square(product(x, x.T))
    for i, (a, b, c) in enumerate(POLAR):
        if i in restarts:
            before, x = x, half(product(q, x))
            of_r = before if wrong == OLD else x
            r = square(product(of_r, of_r.T))
            q = q if wrong == KEPT else None
        z = square(b * r + c * product(r, r))
        q = half(z + a * np.eye(len(z))) if q is None else square(a * q + product(q, z))
        t = square(a * r + product(r, z))
        r = square(a * t + product(z, t))
    return half(product(q, x)) if applied else x


@pytest.mark.parametrize("least", [1, 0.1, 1e-3, 1e-6])
@pytest.mark.parametrize("shape", [(8, 10), (24, 96)])
def test_gram_matrices_are_within_and_mistakes_are_not(shape, least):
    """Of the restart, of Q and of R; which triangle is mirrored, and where a restart is, is only seen by the bits."""
    u = spread(shape, least)
    for tiny in (1, 1e-6):  # below the range of fp16
        for named in ({}, {"wrong": MIRRORED}, {"restarts": (3,)}):
            assert ratio(u * tiny, by_gram(u * tiny, **named), "float16", POLAR, (2,)) < 0.9
    for named in ({"wrong": KEPT}, {"wrong": OLD}, {"applied": False}):
        assert not ratio(u, by_gram(u, **named), "float16", POLAR, (2,)) <= 1.5


def gram_step(**named):
    """Muon in NumPy, with that iteration."""
    def step(params, grads, velocities, *, lr, mu, weight_decay, epsilon):
        for p, g, v in zip(params, grads, velocities, strict=True):
            v[...] = mu * v + (1 - mu) * g
            u = (mu * v + (1 - mu) * g).astype(np.float64)
            with np.errstate(all="ignore"):
                x = by_gram(u, least=epsilon, **named) if u.size else u
            p[...] = p * (1 - lr * weight_decay) - lr * max(1, p.shape[0] / (p.shape[1] or 1)) ** 0.5 * x

    return step


GRAM = {"compute": "float16", "coefficients": "polar_express", "restarts": (2,)}
GROWN = r"too late or never: R is indefinite.*; some singular values of 96 x 24, 0\.8, .* become \d\d.* expected 2\.\d,"
CAUSES = [  # a wrong step, what it leaves undeclared, and how it is named, if it is
    ({}, (), ""), ({"wrong": MIRRORED}, (), ""), ({"restarts": (3,)}, (), ""),
    ({"wrong": KEPT}, (), "Q kept at a restart"), ({"restarts": ()}, (), GROWN)]
SLOW = [
    ({"wrong": OLD}, (), "R from the x before a restart"), ({"applied": False}, (), "the last Q not applied"),
    ({"wrong": "added"}, (), "epsilon is added to the norm"), ({"restarts": (1,)}, (), "restarted one iteration early"),
    ({"restarts": ()}, ("restarts",), GROWN), ({}, ("restarts",), r"as restarts=\(2,\) declares")]


@pytest.mark.parametrize(("named", "undeclared", "cause"), [
    *CAUSES, *(pytest.param(*row, marks=pytest.mark.slow) for row in SLOW)])
def test_a_mistake_in_gram_matrices_is_named(named, undeclared, cause):
    declared = {name: x for name, x in GRAM.items() if name not in undeclared}
    report = held(gram_step(**named), "L1", examples=0, set=declared)
    assert report.ok == (not cause) and len(report.causes) == bool(cause), report
    assert not cause or re.search(cause, report.causes[0].text), report


def upper(square, dtype):
    higher = np.triu(square).astype(dtype)
    return higher + np.triu(higher, 1).T


@pytest.mark.parametrize(("other", "restarts", "cause"), [
    (newton_schulz.mirrored, (2,), ""), (upper, (2,), "the triangle above the diagonal mirrored"),
    (newton_schulz.mirrored, (3,), "Gram matrices restarted one iteration late")])
def test_bits_tell_what_a_bound_cannot(other, restarts, cause, monkeypatch):
    """Which triangle is computed, and where a restart within the bound is."""
    own = dict(GRAM, restarts=restarts)

    def step(params, grads, velocities, *, lr, mu, weight_decay, epsilon):
        numbers = dict(lr=lr, mu=mu, weight_decay=weight_decay, epsilon=epsilon)
        defaults = newton_schulz.by_gram.__defaults__
        monkeypatch.setattr(newton_schulz.by_gram, "__defaults__", (*defaults[:-1], other))
        cpu.merged_muon(params, grads, velocities, **numbers, **own)
        monkeypatch.undo()

    report = held(step, "L18", exact=True, set=GRAM)
    assert bool(report.wrong) == bool(cause) and all(cause in x.text for x in report.causes), report
    assert len(report.causes) == bool(cause), report


@pytest.mark.parametrize("preset", ["polar_express", pytest.param("you", marks=pytest.mark.slow)])
def test_a_schedule_is_declared(preset):
    """By name or as triples, with its restarts; a schedule that no bound holds for is refused."""
    def step(params, grads, velocities, *, lr, mu, weight_decay):
        cpu.merged_muon(params, grads, velocities, lr=lr, mu=mu, weight_decay=weight_decay, compute="float16",
                        restarts=(2,), coefficients="polar_express")

    declared = {"compute": "float16", "coefficients": preset, "restarts": [2]}
    report = held(step, "L1", set=declared, diagnose=False, skips={"L19": "it is the reference"})
    assert report.ok == (preset == "polar_express")
    for wrong, said in (({"restarts": ()}, "restarts: expected one after at most 3 iterations in float16, .*; "
                         r"singular values of 4 x 8, .* become [\d.e+]+, .* expected 1"),
                        ({"restarts": 2}, r"restarts: expected a list of iterations, such as \(2,\), got int"),
                        ({"coefficients": "polar"}, "coefficients: expected one of jordan, polar_express, you, got"),
                        ({"blocks": 3}, "expected names of .* coefficients, restarts.*, got 'blocks'")):
        for refused in (lambda **named: oracle.check("muon", step, **named), partial(oracle.vectors, "muon")):
            with pytest.raises((TypeError, ValueError), match=f"^(check|vectors): set: {said}"):
                refused(dtypes=[], set=declared | wrong)


WRONG = {"no iteration": lambda u: in_bf16(u, []), "four": lambda u: in_bf16(u, FIVE[:4]),
         "six": lambda u: in_bf16(u, FIVE + FIVE[:1]), "c = 2": lambda u: in_bf16(u, [(3.4445, -4.775, 2.0)] * 5),
         "b = -4.7": lambda u: in_bf16(u, [(3.4445, -4.7, 2.0315)] * 5),
         "spectral norm": lambda u: iterated_from(u / np.linalg.norm(u, 2)),
         "each row by itself": lambda u: in_bf16(u / np.linalg.norm(u, axis=1, keepdims=True)),
         "a tail lost": lambda u: in_bf16(u, product=without_tail),
         "two halves": lambda u: np.concatenate([in_bf16(u[:24]), in_bf16(u[24:])])}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_iterations_are_outside(name):
    u = to_bf16(spread((48, 64), 0.05))
    with np.errstate(all="ignore"):
        assert not ratio(u, WRONG[name](u)) <= 1.3


def test_coefficients_in_bf16_are_within():
    """They are off by no more than the products that they are in may be rounded by."""
    triple = [tuple(to_bf16(np.array(COEFFICIENTS)))] * 5
    assert triple[0] != COEFFICIENTS
    assert max(ratio(to_bf16(spread(shape, least)), in_bf16(to_bf16(spread(shape, least)), triple))
               for shape in ((24, 40), (48, 64)) for least in (0.05, 0.1)) < 1


def test_what_the_bound_cannot_tell():
    """The same mathematics, or a smaller change than a rounding."""
    u = to_bf16(spread((48, 32), 0.05))
    assert ratio(u, in_bf16(u)) < 0.9  # a tall matrix that is not transposed
    fp16 = lambda x: x.astype(np.float16).astype(np.float64)  # noqa: E731
    assert ratio(u, iterated(u, rounded=fp16)) < 0.2


def held(step, *laws, dtypes=("float32",), **named):
    return oracle.check("muon", step, laws=laws or None, dtypes=dtypes, process=False, **named)


@pytest.mark.parametrize("dtype", ["float32", pytest.param("bfloat16", marks=pytest.mark.slow),
                                   pytest.param("float16", marks=pytest.mark.slow),
                                   pytest.param("float64", marks=pytest.mark.slow)])
def test_the_reference_is_right(dtype):
    laws = () if dtype != "float32" else ("L1", "L6", "L8", "L9", "L10")
    report = held(cpu.merged_muon, *laws, dtypes=[dtype], skips={"L19": "it is the reference"})
    assert report.ok and max(report.largest[dtype].values(), default=0.5) < 0.9, report


def test_parameters_are_matrices():
    """In every law; and what is none is refused, by its argument and index."""
    shapes = set()

    def step(params, grads, velocities, *, lr, mu, weight_decay, found_inf=None, grad_factor=None):
        shapes.update(x.shape for x in params)
        gate = dict(found_inf=found_inf, grad_factor=grad_factor)
        cpu.merged_muon(params, grads, velocities, lr=lr, mu=mu, weight_decay=weight_decay, iterations=1, **gate)

    held(step, "L2", "L4", "L5", "L8", "L16", diagnose=False, set={"iterations": 1})
    assert {len(shape) for shape in shapes} == {2} and (17, 33) in shapes and (0, 3) in shapes
    lists = {name: [np.ones((3, 2), np.float32), np.ones(3, np.float32)] for name in ("params", "grads", "velocities")}
    with pytest.raises(ValueError, match=r"expect: params\[1\]: expected a matrix, got shape \(3,\)"):
        oracle.expect("muon", **lists, lr=0.1)


def test_a_shape_of_so_many_elements_is_nearly_square():
    """Of as many axes as there have to be."""
    row = KNOWN["muon"]
    trial = Trial(row, Function(row, cpu.merged_muon), "float32", 0, {})
    shapes = {0: (0, 3), 70_001: (130, 136), 1: (1, 1), 7: (1, 7), 12: (3, 4), 45: (5, 9), (4,): (4,)}
    assert {size: trial.shape(size) for size in shapes} == shapes
    trial.axes = 1
    assert trial.shape(45) == (45,)
    assert all(0 not in shape for shape in matrices.TAILS)


@pytest.mark.parametrize(("routine", "iterations"), [("muon", 0.0), ("muon", 2.0), ("normuon", 2.0)])
def test_of_a_matrix_that_is_not_finite_nothing_is_known(routine, iterations):
    """And of an empty one there is nothing to know."""
    row = KNOWN[routine]
    trial = Trial(row, Function(row, getattr(cpu, row.merged_name)), "float32", 0, {})
    case = trial.case([(3, 2), (0, 3), (3, 2)], iterations=iterations)
    case = case.replace(grads=[np.where(np.eye(3, 2, dtype=bool), np.float32(np.inf), case.grads[0]), *case.grads[1:]])
    known = [trial.expected(case, i, sums.random_data) for i in range(3)]
    assert all((x.error == np.inf).all() for name, x in known[0].items() if name != "velocities")
    empty, right = (x["params"] for x in known[1:])
    assert empty.error.shape == (0, 3) and np.isfinite(right.error).all()


@pytest.mark.parametrize("shape", [(24, 40), (40, 24)])
def test_rows_have_a_bound(shape):
    """Though the bounds of their elements would leave none on their norms."""
    row = KNOWN["normuon"]
    trial = Trial(row, Function(row, cpu.merged_normuon), "float32", 0, {})
    trial.hold(trial.case([shape], count=2))
    assert not trial.unbounded and max(trial.largest.values()) < 0.9


def by_tiles(params, grads, velocities, *, lr, mu, weight_decay):
    """Right up to the size of a tile of 128 columns, of which a second one is left out of the products."""
    for p, g, v in zip(params, grads, velocities, strict=True):
        before, first = v.copy(), (slice(None), slice(128))
        cpu.muon(p, g, v, lr=lr, mu=mu, weight_decay=weight_decay)
        if p.shape[1] > 128:
            part = [np.ascontiguousarray(x[first]) for x in (p / (1 - lr * weight_decay), g, before)]
            cpu.muon(*part, lr=lr, mu=mu, weight_decay=weight_decay)
            p[first] = part[0]


def heads_as_one(params, grads, velocities, *, lr, mu, weight_decay):
    """Every parameter in one matrix with the others of its shape."""
    wide = [np.concatenate(xs, 1) for xs in (params, grads, velocities)] if len(params) > 1 else None
    if wide is None or len({x.shape for x in params}) > 1:
        cpu.merged_muon(params, grads, velocities, lr=lr, mu=mu, weight_decay=weight_decay)
        return
    cpu.muon(*wide, lr=lr, mu=mu, weight_decay=weight_decay)
    columns = params[0].shape[1]
    for k, (p, v) in enumerate(zip(params, velocities, strict=True)):
        p[...], v[...] = (x[:, k * columns : (k + 1) * columns] for x in (wide[0], wide[2]))


@pytest.mark.slow
@pytest.mark.parametrize(("step", "laws", "found"), [(by_tiles, ["L1", "L5"], ["L5"]),
                                                     (heads_as_one, ["L1", "L24"], ["L24"])])
def test_a_step_that_is_wrong_for_some_sizes_or_lists_is_found(step, laws, found):
    report = held(step, *laws, diagnose=False, examples=0)
    assert report.failed_laws == found, report


def as_it_is(params, grads, velocities, *, lr, mu, weight_decay):
    """Muon without iterations, as DeepSpeed's was at stage 0: gradient descent with momentum."""
    for p, g, v in zip(params, grads, velocities, strict=True):
        v += (1 - mu) * (g - v)
        p -= lr * (weight_decay * p + mu * v + (1 - mu) * g)


def without_decay(params, grads, velocities, *, lr, mu, weight_decay):
    cpu.merged_muon(params, grads, velocities, lr=lr, mu=mu, weight_decay=0.0)


@pytest.mark.slow
@pytest.mark.parametrize(("step", "words"), [
    (as_it_is, "nothing made orthogonal"), (without_decay, "weight_decay ignored: taken as 0")])
def test_a_cause_is_named(step, words):
    report = held(step, "L1", examples=0)
    assert not report.ok and words in report.causes[0].text, report


def test_it_is_identified():
    """From matrices alone, in its choices."""
    found = oracle.identify(cpu.merged_muon, set={"mu": 0.875})
    assert found.routine == "muon" and found.choices["use_nesterov"], found
    assert oracle.identify(cpu.merged_momentum, set={"mu": 0.875}).routine == "momentum"


def test_it_is_identified_though_it_is_off_by_a_tenth():
    """Since some iterate in 16 bits."""
    def step(params, grads, velocities, *, lr, mu=0.875, weight_decay=0.0):
        cpu.merged_muon(params, grads, velocities, lr=1.1 * lr, mu=mu, weight_decay=weight_decay)

    assert oracle.identify(step).routine == "muon"


def test_a_norm_is_that_of_memory():
    """Its least is epsilon."""
    u = np.asfortranarray(np.arange(6, dtype=np.float32).reshape(2, 3))
    assert norm_of(u, np.float32(0)) == np.sqrt(np.float32(55)) and norm_of(u, np.float32(9)) == 9
