"""The loss scale over many steps, on the CPU and in the kernel."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from refopt import cpu, gpu


def start(scale=8.0, good=0, bad=0):
    return [np.array([x], np.float32) for x in (0, scale)] + [np.array([x], np.int32) for x in (good, bad)]


def run(machine, founds, scale=8.0, **numbers):
    """Scales and counts after each step, by the reference; the kernel must agree."""
    found, *state = start(scale)
    on = [machine.to_device(x) for x in (found, *state)]
    update = gpu.loss_scaling(*on, **numbers)
    seen = []
    for value in founds:
        found[0] = value
        on[0].copy_to_device(found)
        cpu.update_loss_scaling(found, *state, **numbers)
        update()
        machine.synchronize()
        assert [x.copy_to_host().tobytes() for x in on[1:]] == [x.tobytes() for x in state]
        seen.append(tuple(x[0].item() for x in state))
    return seen


@pytest.mark.parametrize(("found", "good", "bad", "left"), [
    (0, 998, 1, (8, 999, 0)), (0, 999, 0, (16, 0, 0)), (0, 1500, 0, (16, 0, 0)),
    (1, 0, 7, (4, 0, 0)), (1, 5, 0, (8, 0, 1)), (1, 0, 1, (4, 0, 0))])
@pytest.mark.parametrize("update", [cpu.update_loss_scaling, gpu.update_loss_scaling,
                                    lambda *arrays: gpu.loss_scaling(*arrays)()], ids=["cpu", "gpu", "plan"])
def test_a_thousand_good_steps_double_and_two_bad_ones_halve(update, found, good, bad, left, machine):
    """By default."""
    flag, *state = start(8.0, good, bad)
    arrays = [flag + np.float32(found), *state]
    arrays = arrays if update is cpu.update_loss_scaling else [machine.to_device(x) for x in arrays]
    update(*arrays)
    machine.synchronize()
    assert tuple((x if isinstance(x, np.ndarray) else x.copy_to_host()).item() for x in arrays[1:]) == left


@pytest.mark.clause("N5")
def test_bounds(machine):
    """Never below 1, never inf; NaN in the flag is a bad step."""
    assert run(machine, [1, 1, np.nan], 1.5, decr_every_n_nan_or_inf=1)[-1] == (1, 0, 0)
    assert run(machine, [0, 0], 2.0**127, incr_every_n_steps=1) == [(2.0**127, 0, 0)] * 2


@given(founds=st.lists(st.sampled_from([0.0, 1.0]), max_size=12), grows=st.integers(1, 4), shrinks=st.integers(1, 3),
       up=st.floats(1, 3, width=32), down=st.floats(0.125, 1, width=32), scale=st.floats(1, 2.0**20, width=32))
def test_kernel_is_reference(machine, founds, grows, shrinks, up, down, scale):
    numbers = dict(incr_every_n_steps=grows, decr_every_n_nan_or_inf=shrinks, incr_ratio=up, decr_ratio=down)
    run(machine, founds, scale, **numbers)


@pytest.mark.parametrize(("changed", "numbers", "error", "message"), [
    ({0: np.ones(2, np.float32)}, {}, ValueError, r"found_inf: expected one element, got shape \(2,\)"),
    ({1: np.ones(1)}, {}, TypeError, "loss_scale: expected float32, got float64"),
    ({2: np.ones(1, np.int64)}, {}, TypeError, "good_steps: expected int32, got int64"),
    ({}, dict(incr_every_n_steps=0), ValueError, "incr_every_n_steps: expected an integer from 1 to 2147483647, got 0"),
    ({}, dict(incr_ratio=0.5), ValueError, "incr_ratio: expected a finite float32 of at least 1, got 0.5"),
    ({}, dict(decr_ratio=2.0), ValueError, "decr_ratio: expected a finite float32 above 0 and of at most 1, got 2.0")])
def test_refuses(machine, changed, numbers, error, message):
    arrays = [changed.get(i, x) for i, x in enumerate(start())]
    before = [x.copy() for x in arrays]
    with pytest.raises(error, match=f"^update_loss_scaling: {message}$"):
        cpu.update_loss_scaling(*arrays, **numbers)
    assert all((x == y).all() for x, y in zip(arrays, before, strict=True))
    with pytest.raises(error, match=f"^update_loss_scaling: {message}$"):
        gpu.update_loss_scaling(*(machine.to_device(x) for x in arrays), **numbers)


def test_arrays_of_no_dimension(machine):
    """One element is one element, in whatever shape."""
    arrays = [x.reshape(()) for x in start()]
    on = [machine.to_device(x) for x in arrays]
    cpu.update_loss_scaling(*arrays, incr_every_n_steps=1)
    gpu.update_loss_scaling(*on, incr_every_n_steps=1)
    assert [x.copy_to_host().tobytes() for x in on] == [x.tobytes() for x in arrays] and arrays[1] == 16
