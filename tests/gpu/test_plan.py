"""A plan over many steps: what it keeps, what it can be told, and that stopping and going on leaves no trace."""

import gc

import numpy as np
import pytest

from refopt import gpu, simt
from refopt.catalog import LARS_MOMENTUM
from refopt.gpu import runtime
from refopt.oracle.exact.cases import assert_same
from refopt.oracle.exact.lars import STEP, make
from refopt.oracle.exact.laws import reference
from refopt.oracle.exact.placed import PlacedCase

forms = pytest.mark.parametrize("form", LARS_MOMENTUM.forms)


@forms
def test_minus_zero_is_another_number(machine, form):
    """A learning rate of -0 after one of +0 gives the bits that it gives in a plan of its own."""
    case = make([5], steps=[STEP | dict(lr=0.0), STEP | dict(lr=-0.0)])
    case.grads[0][...] = -abs(case.grads[0])
    case.velocities[0][...] = -0.0
    placed = PlacedCase(machine, case)
    step = placed.plan(form)
    for hyper in case.steps:
        step(**hyper | dict(lars_weight_decay=0.0))
    alike = case.replace(steps=[hyper | dict(lars_weight_decay=0.0) for hyper in case.steps])
    assert_same(reference(alike), placed.outcome(), "N4, -0")


def test_a_plan_says_what_it_is_of_and_where(executor):
    """A tensor without a gradient is none of its, and 12 bytes an element move in SGD."""
    params = [executor.to_device(np.zeros(size, np.float32)) for size in (1000, 24, 7)]
    grads = [executor.to_device(np.zeros(1000, np.float32)), None, executor.to_device(np.zeros(7, np.float32))]
    step = gpu.plan("sgd", params, grads, lr=0.5, form="separate")
    assert str(step) == (
        "<Plan of sgd, form separate: tensors 2, elements 1,007; per step launches 2, bytes 12,084; "
        f"device executor: {executor.properties}>")
    step.rebind(grads=[None, None, grads[2]])
    assert (step.launches, step.bytes) == (1, 84) and "tensors 1, elements 7;" in str(step)


def test_numbers_are_the_last_that_were_given(executor):
    """Those of the plan among them, once others have been in force; what no number was given for is in no state."""
    x, g = (executor.to_device(np.full(3, value, np.float32)) for value in (0, 1))
    step = gpu.plan("sgd", [x], [g], lr=0.5)
    for lr in (0.25, 0.5, 0.25):
        step(lr=lr)
    step()
    assert (x.copy_to_host() == -1.25).all() and step.state_dict()["hypers"]["lr"] == 0.25
    step.set(lr=[1.0])
    with pytest.raises(TypeError, match=r"^merged_sgd: lr\[0\]: expected a number, got True"):
        step.set(lr=[True])
    step.set(lr=1.0)
    with pytest.raises(TypeError, match=r"^merged_sgd: lr: expected a number.*, got True"):
        step.set(lr=True)
    assert "lr" not in gpu.plan("sgd", [x], [g]).state_dict()["hypers"]


def test_numbers_without_a_default_are_asked_for_one_by_one(executor):
    """By name, until each has been given, be it 0."""
    lists = [[executor.to_device(np.ones(3, np.float32))] for _ in range(3)]
    step = gpu.plan("momentum", *lists)
    for name in ("lr", "mu"):
        with pytest.raises(TypeError, match=f"^merged_momentum: {name}: expected a number, got none$"):
            step()
        step.set(**{name: 0.0})
    step()
    assert (lists[0][0].copy_to_host() == 1).all()


def test_a_first_step_that_is_captured_is_still_to_come(executor, monkeypatch):
    """Its graph may be replayed later or never, so the next step is a first one, too."""
    step, first = PlacedCase(executor, make([5])).plan("carried_norm", **STEP), []
    for captured in (True, False, False):
        monkeypatch.setattr(type(executor), "capturing", lambda self, stream, captured=captured: captured)
        with simt.observe(count=()) as log:
            step()
        first.append(log.launches[0].kernel)
    assert first[0] == first[1] != first[2]


def test_gradients_of_another_kind_are_refused(executor):
    """Of another dtype, order of axes or number; also once others have been given that are like the first."""
    x, g, wide = ([executor.to_device(np.ones((2, 3), dtype))] for dtype in ("f8", "f4", "f8"))
    turned = [executor.to_device(np.ones((2, 3), "f4", "F"))]
    off = [executor.view(executor.to_device(np.zeros(64, np.uint8)), 2, (2, 3), (12, 4), np.float32)]
    step = gpu.plan("sgd", x, g, lr=0.5)
    for grads, said in ((wide,
                         r"grads\[0\]: expected float32 of shape \(2, 3\), as planned, got float64 of shape \(2, 3\)$"),
                        (turned, r"grads\[0\]: expected the axis order of params\[0\]"),
                        (off, r"grads\[0\]: expected an address divisible by 4, as float32 needs, got one with"),
                        (g * 2, "grads: expected 1 entries, as planned, got 2$")):
        for _ in range(2):
            with pytest.raises(ValueError, match=f"^merged_sgd: {said}"):
                step.rebind(grads=grads)
            step.rebind(grads=[executor.to_device(np.ones((2, 3), "f4"))])
    step()
    assert (x[0].copy_to_host() == 0.5).all()


def test_plan_of_nothing(machine):
    """No tensors, no elements, no gradients: no launches, no bytes, no error."""
    empty = machine.to_device(np.zeros(0, np.float32))
    full = machine.to_device(np.ones(3, np.float32))
    other = machine.to_device(np.ones(3, np.float32))
    for slots in (([], [], []), ([empty], [empty], [empty]), ([full], [None], [other])):
        step = gpu.plan("lars_momentum", *slots)
        step(lr=0.1, mu=0.9)
        assert step.launches == step.bytes == 0
    assert (full.copy_to_host() == 1).all()


def test_a_list_that_is_rebound_stays_the_callers(executor):
    x, v, new = ([executor.to_device(np.full(3, k, np.float32))] for k in range(3))
    step = gpu.plan("momentum", x, [executor.to_device(np.ones(3, np.float32))], v, lr=1.0, mu=0.5)
    v.clear()
    assert step.state_dict()["slots"]["velocities"][0].tolist() == [1] * 3
    step.rebind(velocities=new)
    new.clear()
    assert step.state_dict()["slots"]["velocities"][0].tolist() == [2] * 3


def test_a_step_allocates_nothing(executor):
    """After the plan is made, steps and new numbers take no device memory."""
    placed = PlacedCase(executor, make([300, 5]))
    step = placed.plan("carried_norm", **STEP)
    gc.collect()  # what other tests have left in cycles
    before = simt.memory.live_allocations()
    for lr in (0.1, [0.1, 0.2], 0.3):
        step(lr=lr)
    assert simt.memory.live_allocations() == before


def test_steps_follow_their_stream(executor):
    """All launches, uploads and copies of states of a plan are on its stream."""
    stream = simt.cuda.stream()
    placed = PlacedCase(executor, make([300, 5]))
    step = placed.plan("carried_norm", stream=stream)
    with simt.observe(watch=True) as log:
        step(**STEP)
        step(**STEP | dict(lr=0.2))
        step.load_state_dict(step.state_dict())
    assert {launch.stream for launch in log.launches} == {stream}
    assert {copy.stream for copy in log.copies} == {stream} and log.copies


def test_lists_are_counted():
    with pytest.raises(TypeError, match=r"^merged_sgd: expected 2 lists \(params, grads\), got 1$"):
        gpu.plan("sgd", [])


def test_names(machine):
    """The merged operator's name is a name of the routine too."""
    call = [[machine.to_device(np.ones(2, np.float32))] for _ in range(3)]
    assert gpu.plan("merged_lars_momentum", *call).routine is LARS_MOMENTUM


def test_views_of_views(machine):
    """Each counts from where the one before begins."""
    whole = machine.to_device(np.arange(64, dtype=np.float32))
    part = machine.view(machine.view(whole, 16, (32,), (4,)), 8, (2, 3), (4, 8))
    assert part.copy_to_host().tolist() == [[24, 26, 28], [25, 27, 29]]


def test_use_chooses_where_arrays_go(monkeypatch):
    """``use`` forces the machine of ``to_device``, the innermost one, and gives it back afterwards."""
    monkeypatch.setattr(runtime, "_forced", ["gpu"])
    with gpu.use("executor"):
        assert gpu.device().name == "executor"
    assert runtime._forced.pop() == "gpu"
    with gpu.use("executor") as machine:
        assert gpu.device() is machine and machine.name == "executor"
        assert isinstance(gpu.to_device(np.ones(2)), simt.DeviceArray)
    with pytest.raises(KeyError), gpu.use("executor"):
        raise KeyError
    assert not runtime._forced
