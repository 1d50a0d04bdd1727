"""The gradient check, and steps that take its factor and its flag."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from refopt import cpu, gpu, simt
from refopt.checks.dtypes import SIZES, numpy_dtype
from refopt.cpu.reduce import tree_sum
from refopt.gpu.gradient_check import tile_joins
from refopt.oracle.exact.cases import assert_same
from refopt.oracle.exact.placed import Placed
from refopt.oracle.exact.strategies import around, chunk_of, nasty_floats, sizes


@st.composite
def gradients(draw, dtypes=tuple(SIZES), max_tensors=6):
    """Lists of gradients of any dtypes, some None, with a nasty value here and there."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    grads = []
    for _ in range(draw(st.integers(0, max_tensors))):
        dtype = draw(st.sampled_from(dtypes))
        values = rng.normal(size=draw(sizes(around(chunk_of(dtype, dtype))))).astype(numpy_dtype(dtype))
        if values.size and draw(st.integers(0, 3)) == 0:
            values[rng.integers(values.size)] = draw(nasty_floats(dtype))
        grads.append(None if draw(st.integers(0, 7)) == 0 else values)
    return grads


def checked(machine, grads, shifts=(0,), **options):
    """What the kernels leave, and the plan of the check."""
    placed = [g if g is None else Placed(machine, g, shifts[i % len(shifts)]) for i, g in enumerate(grads)]
    scale = options.pop("loss_scale", None)
    scale = scale if scale is None else Placed(machine, scale).array
    with gpu.use(machine.name):
        check = gpu.gradient_check([x if x is None else x.array for x in placed], loss_scale=scale, **options)
    check()
    check()  # nothing is left over from the first
    machine.synchronize()
    for g, x in zip(grads, placed, strict=True):
        assert g is None or x.read().tobytes() == g.tobytes(), "a gradient was written"
    return {name: [getattr(check, name).copy_to_host()] for name in cpu.gradient_check.GradientCheck._fields}, check


def expected(grads, **options):
    return {name: [x] for name, x in cpu.check_gradients(grads, **options)._asdict().items()}


@pytest.mark.clause("N4", "N6", "N7")
@given(grads=gradients(), shifts=st.lists(st.integers(0, 9), min_size=1, max_size=3),
       scale=st.sampled_from([None, 1.0, 3.0, 65536.0]), max_norm=st.sampled_from([np.inf, 1.0, 0.0, 1e-3]),
       epsilon=st.sampled_from([1e-6, 0.0]))
def test_kernels_are_reference(machine, grads, shifts, scale, max_norm, epsilon):
    """Factor, flag and norm have the reference's bits, wherever the gradients lie; of no elements the norm is 0."""
    options = dict(loss_scale=scale and np.array([scale], np.float32), max_norm=max_norm, epsilon=epsilon)
    meant = expected(grads, **options)
    assert any(g is not None and g.size for g in grads) or meant["grad_norm"] == meant["found_inf"] == [0]
    assert_same(meant, checked(machine, grads, shifts, **options)[0], "N7")


@pytest.mark.clause("N7")
@pytest.mark.parametrize("count", [1, 1024, 1025, 2100])
def test_any_number_of_gradients(machine, count):
    """The tree over tensors has as many levels as it takes. Few have a gradient: ends of nodes, and some between."""
    there = {i for i in range(count) if i % 61 == 0 or i % 1024 in (0, 1023)} | {count - 1}
    grads = [np.full(1 + i % 3, 1 + i % 7, np.float32) if i in there else None for i in range(count)]
    assert_same(expected(grads, max_norm=1.0), checked(machine, grads, max_norm=1.0)[0], "N7")


ENDS = (0, np.nan), (2047, np.inf), (2052, -np.inf), (2048, np.nan)  # of tiles and of the tensor
OF_A_THREAD = [(where, np.inf) for where in (*range(4), *range(128, 132))]


@pytest.mark.clause("N12")
@pytest.mark.parametrize(("values", "odd"), [
    *(pytest.param(np.ones(2053, numpy_dtype(dtype)), ENDS, id=dtype) for dtype in SIZES),
    pytest.param(np.linspace(1e30, 2e30, 256, dtype=np.float32), OF_A_THREAD, id="squares overflow")])
def test_every_element_is_looked_at(machine, values, odd):
    """Whichever value that is not finite it is. Where squares overflow, elements are looked at one by one."""
    grads = [np.ones(3, np.float32), values]
    assert checked(machine, grads)[0]["found_inf"] == [0]
    for where, value in odd:
        grads[1] = values.copy()
        grads[1][where] = value
        assert cpu.check_gradients(grads).found_inf == 1
        assert checked(machine, grads)[0]["found_inf"] == [1], where


@pytest.mark.clause("N12")
def test_overflow_is_not_inf():
    """Finite gradients whose squares overflow: the flag stays 0, and clipping makes them 0."""
    check = cpu.check_gradients([np.full(3, 1e30, np.float32)], max_norm=1.0)
    assert (check.found_inf, check.grad_norm, check.grad_factor) == (0, np.inf, 0)


def test_bytes_launches_and_races(executor):
    """One read of every gradient and no write; a launch for each dtype and one more; no race."""
    grads = [np.ones(5000, np.float32), np.ones(3, np.float16), None, np.ones(1025, np.float32)]
    on = [g if g is None else gpu.to_device(g) for g in grads]
    check = gpu.gradient_check(on, max_norm=1.0)
    with simt.observe(watch=True) as log:
        check()
    assert len(log.launches) == check.launches == 3
    for x in on:
        if x is not None:
            assert (log.bytes_read(x), log.bytes_written(x)) == (x.nbytes, 0)
    assert check.bytes == sum(g.nbytes for g in grads if g is not None)


def test_one_thread_of_a_warp_says_what_it_has_found(executor):
    """Five tiles that are not finite, each a warp's, raise the flag by an atomic each."""
    check = gpu.gradient_check([gpu.to_device(np.full(4101, np.nan, np.float32))])
    with simt.observe(profile=True) as log:
        check()
    (row,) = (row for row in log.profile.sectors if row.kind == "atomic" and row.array == "odd_ones")
    assert (row.requests, row.lanes) == (5, 5)


@pytest.mark.clause("N6")
def test_tile_sums_are_joined_tensor_by_tensor(machine):
    """Also more of them than a node joins; each sum goes to its place."""
    counts, places, sums = [2100, 1, 5], [2, 0, 1], machine.to_device(np.zeros(3, np.float32))
    roots, join = tile_joins(machine, counts, places, np.float32, sums)
    values = np.random.default_rng(0).uniform(size=roots.shape).astype(np.float32)
    roots.copy_to_device(values)
    join(machine.stream(0))
    machine.synchronize()
    ends = np.cumsum([0, *counts])
    expected = [tree_sum(values[0, ends[k] : ends[k + 1]]) for k in np.argsort(places)]
    assert sums.copy_to_host().tolist() == expected


@pytest.mark.parametrize(("arguments", "error", "message"), [
    (dict(grads=[np.ones(3, np.int32)]), TypeError, "grads[0]: expected one of .*, got int32"),
    (dict(max_norm=-1.0), ValueError, "max_norm: expected a number of at least 0, got -1.0"),
    (dict(loss_scale=np.ones(2, np.float32)), ValueError, "loss_scale: expected one element, got shape (2,)"),
    (dict(loss_scale=np.ones(1)), TypeError, "loss_scale: expected float32, got float64")])
def test_refuses(machine, arguments, error, message):
    arguments = dict(grads=[np.ones(3, np.float32)]) | arguments
    match = "^check_gradients: " + message.replace("[", r"\[").replace("(", r"\(").replace(")", r"\)")
    with pytest.raises(error, match=match):
        cpu.check_gradients(**arguments)
    there = {name: machine.to_device(x) if isinstance(x, np.ndarray) else x for name, x in arguments.items()}
    with gpu.use(machine.name), pytest.raises(error, match=match):
        gpu.gradient_check(**there | {"grads": [machine.to_device(g) for g in arguments["grads"]]})


# Steps that take what a gradient check leaves.
