"""The gradient check with other gradients, other numbers and another stream at each call."""

import gc
import weakref

import numpy as np
import pytest

from gpu.test_move import at, in_int64
from refopt import cpu, gpu, simt
from refopt.oracle.exact.cases import assert_same
from refopt.oracle.exact.placed import Placed

F = np.float32
DTYPES = "float32", "float16", "float32", "float32"
NAMES = cpu.gradient_check.GradientCheck._fields


def gradients(seed):
    """Those of any seed but 0 are not all finite."""
    rng = np.random.default_rng(seed)
    made = [rng.normal(size=n).astype(d) for n, d in zip((5, 300, 0, 2049), DTYPES, strict=True)]
    made[1][7] = np.inf if seed else 1
    return made


def put(machine, grads, shift=0):
    return [None if g is None else Placed(machine, g, shift).array for g in grads]


def without(grads, absent):
    return [None if i in absent else g for i, g in enumerate(grads)]


def same(check, machine, grads, **options):
    check()
    machine.synchronize()
    got = {name: [getattr(check, name).copy_to_host()] for name in NAMES}
    assert_same({name: [x] for name, x in cpu.check_gradients(grads, **options)._asdict().items()}, got, "N7")


def moved(check, arrays):
    check.move(at(arrays), arrays)


def moved_alone(check, arrays):
    check.move(in_int64(arrays))


def rebound(check, arrays):
    check.rebind(arrays)


@pytest.mark.clause("N7")
@pytest.mark.parametrize("how", [moved, moved_alone, rebound])
@pytest.mark.parametrize("shift", [0, 3])
def test_other_gradients(machine, how, shift):
    first, other = gradients(0), gradients(1)
    arrays, others = put(machine, first), put(machine, other, shift)
    check = gpu.gradient_check(arrays, max_norm=1.0)
    same(check, machine, first, max_norm=1.0)
    for values, there in ((other, others), (other, others), (first, arrays), (other, others)):
        how(check, there)
        same(check, machine, values, max_norm=1.0)


@pytest.mark.clause("N7")
@pytest.mark.parametrize("how", [moved, rebound])
def test_gradients_come_and_go(machine, how):
    """The sum of one that has gone is not taken for its own."""
    first = gradients(0)
    arrays = put(machine, first)
    check = gpu.gradient_check(arrays)
    for absent in ([1], [0, 1, 2, 3], [2], []):
        how(check, without(arrays, absent))
        same(check, machine, without(first, absent))
    check.move(in_int64(without(arrays, [1, 3])))
    same(check, machine, without(first, [1, 3]))
    with pytest.raises(TypeError, match=r"^check_gradients: move: arrays: expected the arrays of grads, since"):
        check.move(at(arrays))
    same(check, machine, without(first, [1, 3]))


@pytest.mark.clause("N7")
def test_other_numbers(machine):
    first = gradients(0)
    check = gpu.gradient_check(put(machine, first), max_norm=1.0)
    check.set(max_norm=0.5)
    same(check, machine, first, max_norm=0.5)
    check.set(epsilon=0.25)
    same(check, machine, first, max_norm=0.5, epsilon=0.25)
    check(max_norm=np.inf, epsilon=0)
    same(check, machine, first)
    check.set(max_norm=1.0)  # as planned
    same(check, machine, first, max_norm=1.0, epsilon=0)
    check.set(max_norm=np.inf)
    for numbers, error, message in (
        (dict(max_norm=-1.0), ValueError, "max_norm: expected a number of at least 0, got -1.0"),
        (dict(epsilon="a", max_norm=1.0), TypeError, "epsilon: expected a finite float32 of at least 0, got 'a'"),
        (dict(norm=1.0), TypeError, "norm: expected one of max_norm, epsilon"),
    ):
        with pytest.raises(error, match=f"^check_gradients: {message}"):
            check.set(**numbers)
    same(check, machine, first)


@pytest.mark.parametrize(("grads", "error", "message"), [
    (lambda g: g[:3], ValueError, "grads: expected 4 entries, as planned, got 3"),
    (lambda g: 3, TypeError, "grads: expected a list of arrays, got int"),
    (lambda g: [g[0], g[0], *g[2:]], ValueError, r"grads\[1\]: expected float16 of shape \(300,\), as planned"),
    (lambda g: [g[0], g[1], g[2], g[3].view(np.int32)], TypeError, r"grads\[3\]: expected one of .*, got int32"),
    (lambda g: [gpu.to_device(np.ones(3)), *g[1:]], ValueError, r"grads\[0\]: expected float32 of shape \(5,\)")])
def test_refused(executor, grads, error, message):
    """A refused rebinding leaves the check with the gradients that it had."""
    first = gradients(0)
    arrays = put(executor, first)
    check = gpu.gradient_check(arrays)
    for _ in range(3):
        with pytest.raises(error, match=f"^check_gradients: {message}"):
            check.rebind(grads(arrays))
        same(check, executor, first)
        check.rebind(arrays)
    check.rebind([None, *arrays[1:]])
    with pytest.raises(TypeError, match=r"^check_gradients: grads\[0\]: expected a dtype that widens to float32"):
        check.rebind([gpu.to_device(np.ones(3)), *arrays[1:]])


def test_stream_and_copies(executor):
    """Nothing goes up where nothing has moved; what follows on another stream is ordered after what was before."""
    streams = [simt.cuda.stream() for _ in range(2)]
    first = gradients(0)
    arrays, others = put(executor, first), put(executor, first)
    check = gpu.gradient_check(arrays, stream=streams[0])
    simt.cuda.synchronize()
    with simt.observe(watch=True) as log:
        check.move(at(arrays), arrays)
        check.rebind(arrays)
        assert not log.copies
        check()
        check.stream = streams[1]
        check.rebind(others)
        check()
    assert {copy.stream for copy in log.copies} == {streams[1]}
    assert [x.stream for x in log.launches] == [streams[0]] * 3 + [streams[1]] * 3


def test_in_a_capture(executor, monkeypatch):
    """As with plans: what replays put into the tables, each call puts right."""
    first, other = gradients(0), gradients(1)
    arrays, others, unaligned = put(executor, first), put(executor, other), put(executor, other, 3)
    check = gpu.gradient_check(arrays, max_norm=1.0)
    monkeypatch.setattr(type(executor), "capturing", lambda self, stream: True)
    check.set(max_norm=1)
    for call in (lambda: check.move([0] * 4), lambda: check.rebind([None, *arrays[1:]]), lambda: check.set(max_norm=2),
                 lambda: check.move(at(unaligned), unaligned)):
        with pytest.raises(RuntimeError, match=r"^check_gradients: .*during a capture"):
            call()
    with pytest.raises(RuntimeError, match=r"^check_gradients: epsilon: expected no new value during a capture"):
        check.set(max_norm=1, epsilon=1)
    check.move(at(others), others)
    monkeypatch.undo()
    check.move(at(arrays), arrays)
    for one in check._passes:  # as a replay does
        one.table.array.copy_to_device(one.rows_of(np.array(at(others)))[0])
    same(check, executor, first, max_norm=1.0)


def test_what_is_at_the_same_address_is_kept_alive(executor):
    arrays = [executor.to_device(np.ones(3, F))]
    check, seen = gpu.gradient_check(arrays), weakref.ref(arrays[0])
    arrays = [arrays[0][:]]
    check.move(at(arrays), arrays)
    arrays = None
    gc.collect()
    assert seen() is None
    arrays = [executor.to_device(np.ones(3, F))]
    check.rebind(arrays)
    arrays.clear()
    gc.collect()
    check()
