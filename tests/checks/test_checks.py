"""A refused call says what was wrong with which argument, and has changed nothing."""

import gc

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from checks.refused import refuses
from refopt import cpu, gpu, simt
from refopt.catalog import LARS_MOMENTUM
from refopt.checks import check_hyper
from refopt.checks.arrays import refuse_overlaps
from refopt.checks.dtypes import ITEM_SIZES, numpy_dtype
from refopt.checks.rebound import _within
from refopt.checks.rebound import overlap as shares_memory
from refopt.checks.rows import Hyper

HYPER = dict(lr=0.1, mu=0.9)


class Call:
    """The arguments of a call that would be accepted, for the table below to spoil. ``put`` makes device arrays."""

    def __init__(self, put):
        self.put = put
        self.params, self.grads, self.velocities = ([self.new(4), self.new(2, 3)] for _ in range(3))
        self.master_params = None
        self.hyper = dict(HYPER)

    def new(self, *shape, dtype="float32"):
        return self.put(np.arange(1, 1 + np.prod(shape, dtype=int)).reshape(shape).astype(numpy_dtype(dtype)))

    def use(self, dtype, i=1):
        """Give tensor ``i`` a parameter of a dtype."""
        self.params[i] = self.new(*self.params[i].shape, dtype=dtype)
        return self

    def set(self, **values):
        """Replace arguments: ``grads_1=x`` is an entry, ``grads=x`` a list, ``lr=x`` a hyperparameter."""
        for name, value in values.items():
            slot, _, index = name.rpartition("_")
            if index.isdigit():
                getattr(self, slot)[int(index)] = value
            elif name in LARS_MOMENTUM.slot_names:
                setattr(self, name, value)
            else:
                self.hyper[name] = value

    def arrays(self):
        lists = (self.params, self.grads, self.velocities, self.master_params)
        return [x for values in lists if isinstance(values, list) for x in values if hasattr(x, "strides")]

    def make(self, function):
        function(self.params, self.grads, self.velocities, master_params=self.master_params, **self.hyper)


def overlap(call):
    whole = call.new(10)
    call.set(params_0=whole[:4], velocities_0=whole[3:7])


REFUSED = [
    # Counts and kinds of arguments.
    (lambda c: c.grads.pop(), ValueError, "grads: expected 2 entries, as params has, got 1"),
    (lambda c: c.set(params=c.params[0]), TypeError, "params: expected a list of arrays, got {array}"),
    (lambda c: c.set(velocities_1=None), TypeError, "velocities[1]: expected an array, got None"),
    (lambda c: c.set(master_params=[None] * 3), ValueError, "master_params: expected 2 entries, as params has, got 3"),
    # Shapes and memory.
    (lambda c: c.set(velocities_0=c.new(8)[::2]), ValueError,
     "velocities[0]: expected a dense array, got strides (8,) for (4,)"),
    (lambda c: c.set(grads_1=c.put(np.ones((3, 2), np.float32).T)), ValueError,
     "grads[1]: expected the axis order of params[1] with strides of (3, 1) elements, got (1, 2)"),
    (overlap, ValueError, "velocities[0]: expected memory of its own, got an overlap with params[0]"),
    (lambda c: c.set(grads_1=c.params[1]), ValueError,
     "params[1]: expected memory of its own, got an overlap with grads[1]"),
    # Dtypes.
    (lambda c: c.set(params_0=c.new(4, dtype="int32")), TypeError,
     "params[0]: expected one of float16, bfloat16, float32, float64, got int32"),
    (lambda c: c.use("float16").set(velocities_1=c.new(2, 3, dtype="float64")), TypeError,
     "velocities[1]: expected float32 or float16 or bfloat16, got float64"),
    (lambda c: c.use("float16").set(master_params=[None, c.new(2, 3, dtype="float16")]), TypeError,
     "master_params[1]: expected float32, got float16"),
    (lambda c: c.set(master_params=[c.new(4), None]), TypeError,
     "master_params[0]: expected no master for a float32 parameter, got float32"),
    (lambda c: c.use("float16").set(master_params=[None, c.new(2, 3, dtype="uint16")]), TypeError,
     "master_params[1]: expected float32, got uint16"),
    # Numbers.
    (lambda c: c.set(lr=-0.5), ValueError, "lr: expected a finite float32 at least 0, got -0.5"),
    (lambda c: c.set(lr=10**400), ValueError, "lr: expected a number in the range of float64, got one beyond it"),
    (lambda c: c.set(epsilon=1e39), ValueError, "epsilon: expected a finite float32 at least 0, got 1e+39"),
    (lambda c: c.set(rescale_grad=1e-46), ValueError, "rescale_grad: expected a finite float32 above 0, got 1e-46"),
    (lambda c: c.set(lr=[0.1, -1.0]), ValueError, "lr[1]: expected a finite float32 at least 0, got -1.0"),
    (lambda c: c.set(lars_weight_decay=[0.1]), ValueError,
     "lars_weight_decay: expected one number or one per tensor, 2, got 1"),
    (lambda c: c.set(rescale_grad=[0.9, 0.9]), TypeError,
     "rescale_grad: expected one number for all tensors, got 2 values"),
    # Choices.
    (lambda c: c.set(adapt="norm"), ValueError, "adapt: expected one of norms, decay, decay_and_norms, got 'norm'")]


REFUSED_ON_THE_DEVICE = [
    (lambda c: c.set(grads_0=Elsewhere()), ValueError, "grads[0]: expected an array on the {device}, got {elsewhere}"),
    (lambda c: c.set(weight_decay=0.1), TypeError,
     "weight_decay: expected one of params, grads, velocities, lr, mu, lars_coeff, lars_weight_decay, epsilon, "
     "rescale_grad, master_params, adapt, norm_of, grad_factor, found_inf, form, stream")]


class Elsewhere:
    """Looks like a device array of some library."""

    dtype, shape = np.dtype(np.float32), (4,)
    __cuda_array_interface__ = {"shape": (4,), "typestr": "<f4", "data": (4096, False), "version": 3}  # noqa: RUF012


def assert_refused(call, function, error, message):
    before = [bytes_of(x) for x in call.arrays()]
    with refuses(error, f"merged_lars_momentum: {message}"):
        call.make(function)
    assert [bytes_of(x) for x in call.arrays()] == before


def bytes_of(array):
    return (array.copy_to_host() if hasattr(array, "copy_to_host") else array).tobytes()


def test_what_the_table_spoils_is_accepted():
    for function, put in ((cpu.merged_lars_momentum, np.array), (gpu.merged_lars_momentum, simt.cuda.to_device)):
        call = Call(put)
        before = [bytes_of(x) for x in call.params]
        call.make(function)
        assert all(bytes_of(x) != old for x, old in zip(call.params, before, strict=True))


def each(*tables):
    """By what is said."""
    rows = [row for table in tables for row in table]
    return pytest.mark.parametrize(("spoil", "error", "message"), rows, ids=[message for *_, message in rows])


@each(REFUSED)
def test_reference_refuses(spoil, error, message):
    call = Call(np.array)
    spoil(call)
    assert_refused(call, cpu.merged_lars_momentum, error, message.format(array="ndarray"))


@each(REFUSED, REFUSED_ON_THE_DEVICE)
def test_kernel_refuses(machine, frozen, spoil, error, message):
    """A plan that was refused has given back all device memory."""
    if "{elsewhere}" in message and machine.name == "gpu":
        pytest.skip("on a GPU any CUDA array interface is a device array")
    call = Call(machine.to_device)
    spoil(call)
    message = message.format(array=type(call.grads[0]).__name__, device=machine.name, elsewhere="Elsewhere")
    gc.collect()
    before = simt.memory.live_bytes()
    assert_refused(call, gpu.merged_lars_momentum, error, message)
    gc.collect()
    assert simt.memory.live_bytes() == before


HOST = {"NumPy": (np.ones(4, np.float32), TypeError,
                  "expected a device array, got a NumPy array; gpu.to_device makes one"),
        "list": ([1.0], TypeError, "expected a device array, got builtins.list"),
        "object": (object(), TypeError, "expected a device array, got builtins.object")}


@pytest.mark.parametrize("kind", HOST)
def test_what_is_on_no_device_is_named(executor, monkeypatch, kind):
    """First in a list too, where it says nothing of the device that the others are on."""
    monkeypatch.setenv("REFOPT_DEVICE", "executor")
    (value, error, message), there = HOST[kind], executor.to_device(np.ones(4, np.float32))
    for name, call in {"merged_sgd: params[0]": lambda: gpu.plan("sgd", [value], [there]),
                       "merged_sgd: grads[1]": lambda: gpu.plan("sgd", [there] * 2, [there, value]),
                       "merged_cast: sources[0]": lambda: gpu.cast_plan([value], [there]),
                       "coalesce_tensor: inputs[0]": lambda: gpu.coalesce_tensor([value]),
                       "coalesce_tensor: inputs[1]": lambda: gpu.coalesce_tensor([None, value], shapes=[(3,), None]),
                       "coalesce_tensor: outputs[0]": lambda: gpu.coalesce_tensor([there], outputs=[value])}.items():
        with refuses(error, f"{name}: {message}"):
            call()


def test_gradients_may_share_memory(machine):
    """Only written arrays need memory of their own."""
    for function, put in ((cpu.merged_lars_momentum, np.array), (gpu.merged_lars_momentum, machine.to_device)):
        call = Call(put)
        call.set(params_1=call.new(4), velocities_1=call.new(4), grads_1=call.grads[0])
        call.make(function)
    for module, put in ((cpu, np.array), (gpu, machine.to_device)):
        param, grad = (put(np.full(4, 2, np.float32)) for _ in range(2))
        module.merged_sgd([param], [grad], lr=0.5, grad_factor=grad[:1])
        assert bytes_of(param) == bytes(16)


# A plan.


@pytest.fixture
def plan(machine):
    call = Call(machine.to_device)
    return call, gpu.plan("lars_momentum", call.params, call.grads, call.velocities, **HYPER)


@pytest.mark.parametrize(("slots", "error", "message"), [
    (lambda c: dict(grads=[c.new(4), c.new(6)]), ValueError,
     "grads[1]: expected shape (2, 3), as params[1] has, got (6,)"),
    (lambda c: dict(grads=c.grads[:1]), ValueError, "grads: expected 2 entries, as planned, got 1"),
    (lambda c: dict(params=[c.new(5), c.new(2, 3)], grads=[None, None], velocities=[c.new(5), c.new(2, 3)]), ValueError,
     "params[0]: expected float32 of shape (4,), as planned, got float32 of shape (5,)"),
    (lambda c: dict(grads=[c.new(4, dtype="float16"), c.grads[1]]), ValueError,
     "grads[0]: expected float32 of shape (4,), as planned, got float16 of shape (4,)"),
    (lambda c: dict(gradients=c.grads), TypeError,
     "gradients: expected one of params, grads, velocities, master_params"),
    (lambda c: dict(velocities=[c.params[0], c.velocities[1]]), ValueError,
     "velocities[0]: expected memory of its own, got an overlap with params[0]")])
@pytest.mark.parametrize("before", [0, 2])
def test_rebind_refuses(plan, slots, error, message, before):
    """A refused `rebind` leaves the plan bound to the arrays it had, also when it has seen others like them."""
    call, step = plan
    for _ in range(before):
        step.rebind(params=call.params, grads=call.grads, velocities=call.velocities)
    with refuses(error, f"merged_lars_momentum: {message}"):
        step.rebind(**slots(call))
    before = bytes_of(call.params[0])
    step()
    assert bytes_of(call.params[0]) != before


@pytest.mark.parametrize(("numbers", "error", "message"), [
    (dict(lr=[0.1]), ValueError, "lr: expected one number or one per tensor, 2, got 1"),
    (dict(lr=10**400), ValueError, "lr: expected a number in the range of float64, got one beyond it"),
    (dict(mu=0.5, lr=float("nan")), ValueError, "lr: expected a finite float32 at least 0, got nan"),
    (dict(momentum=0.9), TypeError,
     "momentum: expected one of lr, mu, lars_coeff, lars_weight_decay, epsilon, rescale_grad")])
def test_step_refuses(plan, numbers, error, message):
    """A refused step does nothing, and keeps the numbers of the step before."""
    call, step = plan
    before = [bytes_of(x) for x in call.arrays()]
    with refuses(error, f"merged_lars_momentum: {message}"):
        step(**numbers)
    assert [bytes_of(x) for x in call.arrays()] == before
    expected = Call(np.array)
    expected.make(cpu.merged_lars_momentum)
    step()
    assert [bytes_of(x) for x in call.arrays()] == [bytes_of(x) for x in expected.arrays()]


def test_gradients_are_refused_where_something_is_written(plan):
    """Also once they have been elsewhere, and for what is written by now, not for what was."""
    call, step = plan
    others, more = ([call.new(4), call.new(2, 3)] for _ in range(2))
    for written in (call.params, others):
        for grads in (call.grads, more, call.grads):
            step.rebind(grads=grads)
        for i in range(2):
            spoiled = [written[k] if k == i else x for k, x in enumerate(more)]
            with pytest.raises(ValueError, match=rf"expected memory of its own, .* with (grads|params)\[{i}\]"):
                step.rebind(grads=spoiled)
        step.rebind(grads=[more[0], more[1]])
        step.rebind(params=others)
    step.rebind(grads=call.params)  # which are nobody's any more


def test_rebind_refuses_memory_of_the_gate(machine):
    """Which a plan reads as well; other arrays are taken."""
    call = Call(machine.to_device)
    flag = call.put(np.zeros(4, np.float32))
    step = gpu.plan("lars_momentum", call.params, call.grads, call.velocities, found_inf=flag[:1], **HYPER)
    step.rebind(velocities=[call.new(4), call.new(2, 3)])
    with pytest.raises(ValueError, match=r"expected memory of its own, got an overlap with"):
        step.rebind(velocities=[flag, call.new(2, 3)])


@settings(max_examples=200)
@given(
    st.lists(st.sampled_from([0.0, -0.0, 1e-38, 1e-3, 0.5, 0.99999999, 1.0, 1e38, 5e38, -1.0, np.inf, np.nan, 1, True,
                              "a"])),
    st.booleans(), st.sampled_from([1.0, np.inf]), st.booleans())
@example([0.5, 0.0], True, np.inf, False)
@example([0.5, -0.0], False, np.inf, False)
@example([0.5, 5e38], True, np.inf, False)
@example([0.5, 1.0], False, 1.0, False)
def test_numbers_of_a_list_are_those_one_by_one(values, positive, below, whole):
    """Looked at all at once, where they are ordinary ones."""
    hyper = Hyper("x", 1.0, positive=positive, per_tensor=True, below=below, whole=whole)

    def checked(value, count=1):
        try:
            return check_hyper(LARS_MOMENTUM, hyper, value, count, {np.float32, np.float64})
        except (TypeError, ValueError) as error:
            return type(error)

    each, got = [checked(value) for value in values], checked(values, len(values))
    errors = [x for x in each if isinstance(x, type)]
    assert repr(got) == repr(errors[0] if errors else each)


@settings(max_examples=300)
@given(st.lists(st.tuples(st.booleans(), st.lists(st.tuples(st.integers(0, 60), st.integers(1, 8)), max_size=4)),
                min_size=1, max_size=4))
@example([(False, [(0, 8), (1, 1)]), (True, [(4, 1)])])
def test_overlaps_are_those_that_are_refused(groups):
    """Seen at once, as `rebind` does, or one by one, as a first call does."""
    spans = [(start, start + n, flag, "") for flag, extents in groups for start, n in extents]
    refused = False
    try:
        refuse_overlaps("", iter(spans))
    except ValueError:
        refused = True
    extents = [np.array([(a, a + n) for a, n in extents], np.int64).reshape(-1, 2).T for _, extents in groups]
    assert shares_memory(extents, [flag for flag, _ in groups]) == refused
    both = [(x, y) for k, x in enumerate(spans) for y in spans[:k] if x[0] < y[1] and y[0] < x[1]]
    assert refused == any(x[2] or y[2] for x, y in both)


spans_of = st.lists(st.tuples(st.integers(0, 60), st.integers(1, 8)), max_size=4)


@given(spans_of, st.lists(st.integers(0, 70), max_size=8, unique=True))
def test_memory_shared_with_others_that_are_in_order(spans, ends):
    """As gradients are looked at, when what is written stays where it is."""
    ends, extents = sorted(ends[: len(ends) // 2 * 2]), [(start, start + n) for start, n in spans]
    others = [*zip(ends[::2], ends[1::2], strict=True)]
    found = _within(*(np.array(x, np.int64).reshape(-1, 2).T for x in (extents, others)))
    assert found == any(a < d and c < b for a, b in extents for c, d in others)


def test_rebind_refuses_masters_that_come_or_go(machine):
    """Whether a tensor has a master is part of the plan: its kernels were made for that."""
    call = Call(machine.to_device).use("float16", 0).use("float16", 1)
    masters = [call.new(4), call.new(2, 3)]
    for planned, other in ((masters, None), (masters, [masters[0], None]), (None, masters)):
        step = gpu.plan("lars_momentum", call.params, call.grads, call.velocities, master_params=planned, **HYPER)
        with pytest.raises((TypeError, ValueError), match=r"merged_lars_momentum: master_params\[[01]\]: expected"):
            step.rebind(master_params=other)
        step()


def test_a_plan_of_nothing_refuses_bad_numbers_too(machine):
    """What is wrong does not depend on how many tensors there are."""
    step = gpu.plan("lars_momentum", [], [], [])
    with pytest.raises(ValueError, match="lr: expected a finite float"):
        step(lr=float("nan"), mu=0.9)


def test_another_device_name():
    with refuses(ValueError, "device: expected gpu or executor, got 'cpu'"):
        gpu.device("cpu")


def test_the_sizes_of_dtypes_are_those_of_numpy():
    assert {name: numpy_dtype(name).itemsize for name in ITEM_SIZES} == ITEM_SIZES
