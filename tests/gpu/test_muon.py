"""Merged Muon on tensor cores: the bits of `cpu.merged_muon`, on the executor and on a GPU."""

import re

import numpy as np
import pytest

from refopt import cpu, gpu, simt
from refopt.checks.dtypes import numpy_dtype
from refopt.cpu import Blocks
from refopt.cpu.muon import COEFFICIENTS

bfloat16 = pytest.importorskip("ml_dtypes").bfloat16

pytestmark = pytest.mark.clause("N17", "N18", "N19")
SHAPES = {"executor": [(1, 1), (1, 9), (9, 1), (17, 33), (33, 17), (8, 16), (24, 12), (32, 8)],
          "gpu": [(1, 1), (1, 300), (300, 1), (17, 33), (33, 17), (8, 16), (64, 64), (512, 512), (512, 130), (99, 512)]}
SMALL = [(3, 5), (16, 8)]
SCHEDULE = [COEFFICIENTS, (1.5, -0.5, 0)]


def lists(shapes, param="float32", grad=None, velocity=None, seed=0):
    rng = np.random.default_rng(seed)
    kinds = param, grad or param, velocity or param
    return [[rng.standard_normal(shape).astype(numpy_dtype(kind)) for shape in shapes] for kind in kinds]


def copied(xss):
    return [[x if x is None else np.copy(x, order="K") for x in xs] for xs in xss]


def there(machine, xss):
    return [[x if x is None else machine.to_device(x) for x in xs] for xs in xss]


def same(got, want):
    """Bit by bit; of NaN, that it is one."""
    for i, (device, host) in enumerate(zip(got, want, strict=True)):
        x = device.copy_to_host()
        assert x.shape == host.shape and x.dtype == host.dtype
        wide = [y.astype(np.float64) if host.dtype != np.uint16 else y for y in (x, host)]
        bits = [np.ascontiguousarray(y).view(f"u{y.itemsize}") for y in (x, host)]
        assert ((bits[0] == bits[1]) | (np.isnan(wide[0]) & np.isnan(wide[1]))).all(), i


def with_rows(host, blocks=None, seed=3):
    """Lists of Muon with states by row."""
    rng, real = np.random.default_rng(seed), np.float64 if host[0][0].dtype == np.float64 else np.float32
    cuts = blocks or [Blocks()] * len(host[0])
    return [*host, [rng.random(cut.row_shape(x.shape)).astype(real) for cut, x in zip(cuts, host[0], strict=True)]]


def compare(machine, host, steps=1, masters=None, routine="muon", **named):
    """Steps of a plan and of the reference, from copies of the same lists, with states by row if NorMuon has none."""
    if routine == "normuon" and len(host) == 3:
        host = with_rows(host, named.get("blocks"))
    named = dict(lr=0.1, iterations=2) | named
    masters = {} if masters is None else {"master_params": masters}
    on_host, extra = copied(host), {name: copied([xs])[0] for name, xs in masters.items()}
    on_device, given = there(machine, host), {name: there(machine, [xs])[0] for name, xs in masters.items()}
    shared = {name: named.pop(name) for name in ("grad_factor", "found_inf") if name in named}
    step = gpu.plan(routine, *on_device, **given, **named, **{k: machine.to_device(x) for k, x in shared.items()})
    for _ in range(steps):
        step()
        getattr(cpu, f"merged_{routine}")(*on_host, **extra, **named, **shared)
    machine.synchronize()
    for k in (0, *range(2, len(host))):
        same(on_device[k], on_host[k])
    for name in extra:
        same(given[name], extra[name])
    return step


@pytest.mark.parametrize("compute", ["bfloat16", "float32", "float64", pytest.param("float16", marks=pytest.mark.slow)])
def test_the_bits_are_those_of_the_reference(machine, compute):
    """Of matrices of all shapes in one list, and in two steps."""
    host = lists(SHAPES[machine.name], "float64" if compute == "float64" else "float32")
    compare(machine, host, 2, compute=compute, iterations=5 if machine.name == "gpu" else 1)


@pytest.mark.slow
@pytest.mark.parametrize(("shapes", "named"), [
    ([(70, 136), (130, 66), (1, 1)], {"iterations": 5}), ([(130, 140), (140, 132)], {}),
    ([(70, 90), (90, 72)], {"iterations": 3, "restarts": (), "compute": "float16"})])
def test_more_than_a_tile(machine, shapes, named):
    """Of small tiles and of large ones; of squares that Gram matrices mirror."""
    compare(machine, lists(shapes), **named)


RESTARTED = {"bfloat16": (2, 4), "float16": (2,), "float32": (1, 4), "float64": ()}


@pytest.mark.parametrize("compute", [*RESTARTED])
def test_gram_matrices_beside_squares(machine, compute):
    """Both orientations, parts of tiles and more than one; squares are iterated as ever, in the same launches."""
    shapes = [(9, 20), (20, 9), (8, 8), (1, 7), (12, 15), (15, 12), (14, 17)]
    shapes += [(130, 520), (520, 130)] * (machine.name == "gpu")
    host = lists(shapes, "float64" if compute == "float64" else "float32")
    step = compare(machine, host, 2, compute=compute, restarts=RESTARTED[compute], iterations=5, coefficients="you",
                   blocks=[Blocks(rows=3), *[Blocks()] * (len(shapes) - 1)])
    segments = np.diff([0, *RESTARTED[compute], 5])
    gram = 2 * len(segments) + (5 - len(segments)) + (5 - (segments == 1).sum())  # a I and Q x; R; T with Q
    assert step.launches == 3 + 3 * 5 + gram


@pytest.mark.parametrize("compute", ["float16", pytest.param("float32", marks=pytest.mark.slow)])
def test_each_element_of_a_square_is_stored_once(executor, compute):
    """Of those above the diagonal, by whoever has the element below: no store of another thread is there before."""
    with simt.observe(watch=True) as log:
        compare(executor, lists([(10, 8)]), compute=compute, restarts=())
    assert len(log.launches) == 3 + 8


@pytest.mark.parametrize("named", [
    {"use_nesterov": False}, {"average": False}, {"average": False, "use_nesterov": False, "mu": 0.5},
    {"adjust_lr": "match_rms_adamw"}, {"adjust_lr": "spectral_unclamped"}, {"adjust_lr": "none", "weight_decay": 0.0},
    {"rescale_grad": 0.3},
    {"coefficients": SCHEDULE, "iterations": 2},
    {"lr": [0.1, 0.2], "mu": [0.9, 0.5], "weight_decay": [0.0, 0.5], "epsilon": [1e-7, 1e3]}], ids=str)
def test_every_option(machine, named):
    compare(machine, lists(SMALL), **{"iterations": 0} | named)


routines = pytest.mark.parametrize(
    "routine", ["muon", pytest.param("normuon", marks=pytest.mark.clause("N20", "N6"))])


@routines
@pytest.mark.parametrize(("dtypes", "master"), [
    (("bfloat16",) * 3, None), (("float16", "float16", "float32"), "float32"), (("bfloat16",) * 3, "uint16"),
    (("bfloat16", "float32", "bfloat16"), "float32"), (("float32", "bfloat16", "float32"), None)], ids=str)
def test_every_dtype(machine, dtypes, master, routine):
    """With masters and remainders, tails and elements that are looked for one by one; states as computed."""
    shapes = [(16, 72), (5, 3), (4, 8)]
    host = lists(shapes, *dtypes)
    masters = None
    if master:
        rng = np.random.default_rng(1)
        exact = [x.astype(np.float32) for x in host[0]]
        masters = exact if master == "float32" else [rng.integers(0, 2**15, s).astype(np.uint16) for s in shapes]
    compare(machine, host, 2, masters, routine, iterations=0, blocks=[Blocks(), Blocks(), Blocks(columns=2)])


def orders(shape, *axes):
    """Arrays of a shape that lie in memory in the order of these axes."""
    return [[x.transpose(np.argsort(axes)) for x in xs] for xs in lists([tuple(shape[axis] for axis in axes)])]


BLOCKS = [
    (Blocks(rows=2), (6, 8), (0, 1)), (Blocks(columns=(3, 5)), (4, 8), (0, 1)),
    (Blocks(rows=(2, 4), columns=2), (6, 8), (1, 0)), (Blocks(), (6, 16), (1, 0)), (Blocks(), (16, 6), (1, 0)),
    (Blocks(of="experts"), (2, 3, 8), (0, 1, 2)), (Blocks(of="experts"), (2, 3, 8), (1, 2, 0)),
    (Blocks(of="experts", rows=3), (2, 3, 8), (2, 0, 1)), (Blocks(of="convolution"), (4, 3, 2, 2), (0, 1, 2, 3)),
    (Blocks(of="convolution"), (4, 3, 2, 2), (0, 2, 3, 1))]


@routines
def test_blocks_as_they_lie_in_memory(machine, routine):
    """Each is a matrix, whatever the order of the axes, with Gram matrices and without; nothing is copied."""
    every = [orders(shape, *axes) for _, shape, axes in BLOCKS]
    host = [[xs[k][0] for xs in every] for k in range(3)]
    for more in ({}, {"restarts": ()}):
        compare(machine, host, routine=routine, iterations=1, blocks=[blocks for blocks, *_ in BLOCKS], **more)


def test_what_is_not_finite_stays_in_its_matrix(machine):
    """NaN, inf, squares that overflow and that underflow, zeros, with and without an epsilon."""
    for epsilon, iterations in ((0.0, 1), (1e-7, 0)):
        host = lists([(3, 8)] * 6)
        for g, v, value in zip(*host[1:], (np.nan, np.inf, 1e25, 1e-30, 0, 1), strict=True):
            v *= 0
            g[1, 2:4] *= value
            if value in (0, 1e-30):
                g *= value
        with np.errstate(all="ignore"):
            compare(machine, host, iterations=iterations, epsilon=epsilon)


def test_infinities_do_not_meet_the_padding(machine):
    """Where they would become NaN, times zero: x overflows in the first iteration, and is infinite after the second."""
    host = [[np.ones((3, 5), np.float32)] for _ in range(3)]
    compare(machine, host, compute="float16", coefficients=(6e4, 1, 1), iterations=2)
    with np.errstate(all="ignore"):
        cpu.merged_muon(*host, lr=0.1, compute="float16", coefficients=(6e4, 1, 1), iterations=2)
    assert (host[0][0] == -np.inf).all()


@routines
def test_factor_flag_and_missing_gradients(machine, routine):
    host = lists([(3, 5), (4, 4), (0, 3), (9, 8)])
    host[1][1] = None
    one = np.ones(1, np.float32)
    for gate in ({"grad_factor": one / 3, "found_inf": one * 0}, {"grad_factor": one / 3}, {"found_inf": one}):
        compare(machine, host, routine=routine, iterations=0, **gate)
    compare(machine, host, routine=routine, grad_factor=one / 3, found_inf=one, iterations=1)


def test_launches_do_not_grow_with_the_matrices(machine):
    """Three, and three for each iteration; each dtype signature has its own."""
    for count, iterations in ((1, 2), (3, 1)):
        step = gpu.plan("muon", *there(machine, lists([(2, 3)] * count)), lr=0.1, iterations=iterations)
        assert step.launches == 3 + 3 * iterations
        if machine.name == "executor":
            with simt.observe() as log:
                step()
            assert len(log.launches) == step.launches
    kinds = [lists([(2, 3)]), lists([(2, 3)], "bfloat16")]
    mixed = there(machine, [x + y for x, y in zip(*kinds, strict=True)])
    assert gpu.plan("muon", *mixed, lr=0.1).launches == 2 * (3 + 15)


def test_numbers_and_arrays_may_change(machine):
    """Other iterations, and parameters of another order of axes, need other tables; the number is the schedule's."""
    host = lists([(6, 8)])
    device = there(machine, host)
    step = gpu.plan("muon", *device, iterations=1)
    step(lr=0.1)
    cpu.merged_muon(*host, lr=0.1, iterations=1)
    step(iterations=0, lr=0.2)
    cpu.merged_muon(*host, lr=0.2, iterations=0)
    assert step.launches == 3
    step.set(iterations=1)
    assert step.launches == 6
    turned = orders((6, 8), 1, 0)
    given = there(machine, turned)
    step.rebind(params=given[0], grads=given[1], velocities=given[2])
    step()
    cpu.merged_muon(*turned, lr=0.2, iterations=1)
    machine.synchronize()
    same([device[0][0], device[2][0], given[0][0], given[2][0]], [host[0][0], host[2][0], turned[0][0], turned[2][0]])
    scheduled = gpu.plan("muon", *device, lr=0.1, iterations=2, coefficients=SCHEDULE)
    with pytest.raises(ValueError, match=r"coefficients: expected a triple for each of 3 iterations, got 2"):
        scheduled(iterations=3)
    assert scheduled.state_dict()["hypers"]["iterations"] == 2
    restarting = gpu.plan("muon", *there(machine, lists([(2, 9)])), lr=0.1, iterations=2, restarts=())
    with pytest.raises(ValueError, match=r"restarts: expected one after at most 2 iterations in bfloat16"):
        restarting.set(iterations=3)
    with pytest.raises(TypeError, match=r"iterations: expected a number, got '2'"):
        restarting.set(iterations="2")
    restarting()


def goes_on(machine, routine, host, iterations):
    """A state that is loaded into another plan leaves what its own plan leaves: all but the gradients."""
    first, second = there(machine, host), there(machine, host)
    step, other = (gpu.plan(routine, *xss, lr=0.1, iterations=iterations) for xss in (first, second))
    step()
    for x, y in zip(second[0], first[0], strict=True):
        x.copy_to_device(y.copy_to_host())
    other.load_state_dict(step.state_dict())
    step()
    other()
    machine.synchronize()
    for left, right in zip(second[::2] + second[3:], first[::2] + first[3:], strict=True):
        same(left, [x.copy_to_host() for x in right])


def test_a_state_goes_on_in_another_plan(machine):
    goes_on(machine, "muon", lists(SMALL), iterations=0)


def test_functions_of_one_call(machine):
    host = lists(SMALL)
    device = there(machine, host)
    gpu.merged_muon(*device, lr=0.1, iterations=1)
    gpu.muon(*(xs[0] for xs in device), lr=0.1, iterations=1, blocks=Blocks(rows=3))
    cpu.merged_muon(*host, lr=0.1, iterations=1)
    cpu.muon(*(xs[0] for xs in host), lr=0.1, iterations=1, blocks=Blocks(rows=3))
    same(device[0] + device[2], host[0] + host[2])


@pytest.mark.parametrize(("message", "shapes", "dtype", "named"), [
    ("compute: expected one of bfloat16, float16, float32 on a device for params[0] of float32, got float64", SMALL,
     "float32", {"compute": "float64"}),
    ("compute: expected one of float64 on a device for params[0] of float64, got bfloat16", SMALL, "float64", {}),
    ("params[1]: expected a matrix, got shape (4,)", [(3, 5), (4,)], "float32", {}),
    ("blocks[1].rows: expected a divisor of the 16 rows of params[1], got 3", SMALL, "float32",
     {"blocks": [Blocks(), Blocks(rows=3)]}),
    ("coefficients: expected three numbers, got 2", SMALL, "float32", {"coefficients": (1, 2)}),
    ("coefficients: expected one of jordan, polar_express, you, got 'gram'", SMALL, "float32",
     {"coefficients": "gram"}),
    ("restarts: expected one after at most 2 iterations in bfloat16, before R is indefinite, got none from 2 to 5",
     SMALL, "float32", {"restarts": (2,)}),
    ("restarts[1]: expected more than 2, got 2", SMALL, "float32", {"restarts": (2, 2)}),
    ("restarts[0]: expected an integer of at least 1, got 0", SMALL, "float32", {"restarts": [0]}),
    ("lr[1]: expected", SMALL, "float32", {"lr": [0.1, -1.0]})])
def test_what_is_refused(machine, message, shapes, dtype, named):
    """By argument and index, before anything is modified."""
    host = lists(shapes, dtype)
    device = there(machine, host)
    with pytest.raises((ValueError, TypeError), match=re.escape(message)):
        gpu.merged_muon(*device, **({"lr": 0.1} | named))
    same(device[0] + device[2], host[0] + host[2])
