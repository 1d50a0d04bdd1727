"""Arrays behind names: who changes them beside the op at hand, what starts from what, what shares memory."""

import contextlib
from functools import partial

import numpy as np
import pytest
from program_cases import PARAMS, adam, arrays_of, bound_on, put, started, values

from refopt import gpu
from refopt.checks.dtypes import REMAINDERS
from refopt.comm import CommError, local
from refopt.cpu import remainder
from refopt.program import UNKNOWN, Config, Op, Program, Var, amp_program, bind, passes, run, step_program
from refopt.program.passes import on_device, send_to_owners
from refopt.simt import cuda, observe

BACKENDS = pytest.mark.parametrize("backend", ["cpu", "gpu"])


def ones(n=3):
    return np.ones(n, np.float32)


def placed(backend, array):
    return gpu.to_device(array) if backend == "gpu" else array.copy()


@pytest.mark.parametrize("make", [adam, partial(adam, config="amp"), partial(amp_program, optimizer="adam", lr=0.5)],
                         ids=["fp32", "amp", "loss_scaling"])
def test_all_work_is_on_the_stream_given(executor, make):
    """From startup on: also tensors are moved into buffers there, and the loss scale updated."""
    program = passes.fuse_optimizer(make([("a", (2,)), ("b", (3,))]), form="flat").program
    stream, arrays = cuda.stream(), arrays_of(program)
    with observe(count=()) as log:
        started(program, put("gpu", arrays), backend="gpu", stream=stream).step()
    assert {launch.stream for launch in log.launches} == {stream}


# Scalars that others change, too.


def halved(program):
    """A power of beta that is halved after each update."""
    x = ["a_beta1_pow_acc_0"]
    return program.replace(main=[*program.main, Op("scale", {"x": x}, {"out": x}, {"scale": 0.5}, "optimize")])


def twice(program):
    return program.replace(main=[*program.main, program.main[-1]])


@pytest.mark.parametrize("change", [halved, twice])
@pytest.mark.parametrize("flat", [False, True])
@pytest.mark.parametrize("optimizer", ["adam", "nadam", "radam", "adamax"])
def test_scalars_that_another_op_changes(optimizer, change, flat):
    """A step on the device reads them anew."""
    program = step_program([("a", (3,)), ("b", (2,))], optimizer, lr=0.5)
    if flat:
        program = passes.fuse_optimizer(program, form="flat").program
    if change is halved and "a_beta1_pow_acc_0" not in program.vars:
        return
    found = []
    for backend in ("cpu", "gpu"):
        arrays = {name: placed(backend, ones(n)) for name, n in (("a", 3), ("b", 2))}
        made = run(
            change(program), arrays, backend=backend, steps=3,
            gradients=lambda name, step: np.full(program.vars[name].shape, step + 1, np.float32))
        vars = [var for var in program.vars.values() if var.persistable and var.shape != UNKNOWN]
        found.append({var.name: made.read(var.name).tobytes() for var in vars})
    assert found[0] == found[1]


# What variables start from.


def chained(*pairs):
    """Variables that start from others."""
    vars = [Var(name, (2,), "float32", persistable=True, initial=initial) for name, initial in pairs]
    return Program({var.name: var for var in vars})


@pytest.mark.parametrize("pairs", [(("a", "b"), ("b", "c"), ("c", None)), (("c", None), ("b", "c"), ("a", "b"))])
def test_copies_of_copies(pairs):
    """Whatever the order of variables."""
    bound = bind(chained(*pairs), {"c": ones(2)})
    assert [bound.read(name).tolist() for name in "abc"] == [[1, 1]] * 3


@pytest.mark.parametrize(("program", "message"), [
    (chained(("a", "b"), ("b", "a")), "'a': initial: expected no cycle, got 'a' again"),
    (chained(("a", "b"), ("b", 0.0)).with_vars([Var("c", (3,), "float32", initial="a")]),
     r"'c': initial: expected shape \(3,\), got shape \(2,\), 'a'"),
    (Program({}).with_vars([Var("s", (3,), "float32", sparse=True), Var("c", (3,), "float32", initial="s")]),
     r"'c': initial: expected shape \(3,\), got a sparse variable, 's'")])
def test_what_nothing_can_start_from(program, message):
    with pytest.raises(ValueError, match=f"program: {message}"):
        program.check()


# Memory that is shared, and arrays that are put in place of others.


@BACKENDS
def test_arrays_that_share_memory(backend):
    """Those that ops change are refused, and nothing is done; those that ops read alone are not."""
    program = step_program([("a", (3,)), ("b", (3,))], "sgd", lr=0.5)
    x = placed(backend, values("float32", (3,), 1))
    for arrays in ({"a": x, "b": x}, {"a": x, "b": x.reshape(3)}):
        with pytest.raises(ValueError, match="bind: arrays: 'b': expected memory of its own, got an overlap with arr"):
            bind(program, arrays, backend=backend)
    bound = started(program, {"a": x, "b": placed(backend, ones())}, backend=backend)
    y = placed(backend, ones())
    with pytest.raises(ValueError, match="expected memory of its own"):
        bound.rebind({"a": y, "b": y})
    vars = {name: Var(name, (3,), "float32", persistable=True) for name in "ab"}
    bind(Program(vars), {"a": x, "b": x}, backend=backend)
    halved = Program(vars, [Op("scale", {"x": ["a"]}, {"out": ["a"]}, {"scale": 0.5}, "startup")])
    with pytest.raises(ValueError, match="expected memory of its own"):
        bind(halved, {"a": x, "b": x}, backend=backend)
    if backend == "cpu":
        x.setflags(write=False)
        bind(Program(vars), {"a": x, "b": x})


def bound_in_buffers(backend, form):
    """Three parameters of SGD with momentum, after a step: as they were brought, or all or two moved into buffers."""
    program = step_program([("a", (4,)), ("b", (4,)), ("c", (4,))], "momentum", lr=0.5, mu=0.5)
    if form == "flat":
        program = passes.fuse_optimizer(program, form="flat").program
    if form == "moved":
        outputs = {"output": ["a", "b"], "fused_output": ["buffer"]}
        moves = Op("coalesce_tensor", {"input": ["a", "b"]}, outputs, {"copy_data": True})
        program = program.with_vars([Var("buffer", UNKNOWN, "float32", True)]).replace(startup=[moves])
    given = {name: placed(backend, values("float32", (8,), 1, k))[:4] for k, name in enumerate("abc")}
    bound = started(program, given, backend=backend, gradients=lambda name, step: np.full(4, step + 1, np.float32))
    bound.step()
    return bound, given


@BACKENDS
@pytest.mark.parametrize(("form", "name", "other"), [
    ("plain", "b", lambda bound, given: given["a"]),
    ("plain", "b", lambda bound, given: given["a"].reshape(2, 2).reshape(4)),
    ("plain", "b", lambda bound, given: bound.arrays["c_velocity_0"]),
    ("plain", "a_velocity_0", lambda bound, given: given["a"]),
    ("plain", "a_velocity_0", lambda bound, given: bound.arrays["b@GRAD"]),
    ("plain", "a@GRAD", lambda bound, given: given["b"]),
    ("flat", "a", lambda bound, given: bound.arrays["b"]),
    ("flat", "b@GRAD", lambda bound, given: bound.arrays["c_velocity_0"]),
    ("flat", "c@GRAD", lambda bound, given: given["a"]),  # which copy_back writes
    ("flat", "b", lambda bound, given: bound.arrays[bound.program.buffer_of["b"]][6:10]),  # padding
])
def test_arrays_that_share_memory_with_what_is_bound(backend, form, name, other):
    """A rebinding is refused by what stays as well, and changes nothing."""
    bound, given = bound_in_buffers(backend, form)
    before = {key: bound.read(key).tobytes() for key in bound.arrays}, dict(bound.arrays)
    with pytest.raises(ValueError, match=f"^rebind: arrays: '{name}'.*: expected memory of its own, got an overlap wi"
                                         f"|^rebind: .*got an overlap with arrays: '{name}'"):
        bound.rebind({name: other(bound, given)})
    assert before == ({key: bound.read(key).tobytes() for key in bound.arrays}, dict(bound.arrays))
    fresh, _ = bound_in_buffers(backend, form)
    for each in (bound, fresh):
        each.step()
    assert all(bound.read(key).tobytes() == fresh.read(key).tobytes() for key in fresh.arrays)


@BACKENDS
@pytest.mark.parametrize("form", ["plain", "flat", "moved"])
def test_arrays_that_may_take_the_place_of_others(backend, form):
    """Two that change places, each in its own place, and what was brought and is no variable's any more."""
    bound, given = bound_in_buffers(backend, form)
    if form == "moved":
        with pytest.raises(ValueError, match="expected memory of its own, got an overlap"):
            bound.rebind({"c@GRAD": given["a"]})
        bound.rebind({"a": placed(backend, ones(4)), "c@GRAD": given["a"]})
    bound.rebind({name: array for name, array in bound.arrays.items() if name not in bound.program.views})
    if form == "plain":
        before = [bound.read(name).tobytes() for name in "ab"]
        bound.rebind({"a": given["b"], "b": given["a"]})
        assert [bound.read(name).tobytes() for name in "ba"] == before
    bound.step()


@pytest.mark.parametrize(("array", "message"), [
    (np.ones((8, 3), np.float32)[::2], r"arrays: 'b': expected a dense array, got strides \(24, 4\) for \(4, 3\)"),
    (np.broadcast_to(np.float32(1), (4, 3)), "bind: arrays: 'b': expected a "),
    (np.frombuffer(bytes(48), np.float32).reshape(4, 3), "bind: arrays: 'b': expected a writable array, got a read-on"),
])
def test_arrays_that_no_op_can_take(array, message):
    program = step_program([("a", (4, 3)), ("b", (4, 3))], "sgd", lr=0.5)
    with pytest.raises(ValueError, match=message):
        bind(program, {"a": np.ones((4, 3), np.float32), "b": array})


def test_a_gradient_that_shares_memory_with_its_array():
    """What is new in each step is looked at in each step: a part of the gradient's own array is refused."""
    program = step_program([("a", (4,))], "sgd", lr=0.5)
    room = np.ones(6, np.float32)
    given = [np.ones(4, np.float32), room[:4], room[2:]]
    bound = started(program, {"a": ones(4), "a@GRAD": room[:4]}, gradients=lambda name, step: given[step])
    bound.step()
    bound.step()
    with pytest.raises(ValueError, match=r"backward: 'a@GRAD': .*expected memory of its own, got an overlap"):
        bound.step()
    assert (bound.read("a") == 0).all()


def test_gradients_of_a_step_that_was_refused_are_forgotten():
    """The next step writes what the mapping has then."""
    program = step_program([("a", (3,)), ("b", (3,))], "sgd", lr=1.0)
    last, first = program.main[0].writes[0], program.main[1].writes[0]
    grads = {last: np.full(3, 8, np.float32), first: np.zeros(4, np.float32)}
    bound = started(program, {name: np.zeros(3, np.float32) for name in "ab"}, gradients=grads)
    with pytest.raises(ValueError, match=f"backward: '{first}': expected float32"):
        bound.step()
    grads.update({last: np.full(3, 2, np.float32), first: np.ones(3, np.float32)})
    bound.step()
    assert bound.read(last[0]).tolist() == [-2] * 3 and bound.read(first[0]).tolist() == [-1] * 3


@BACKENDS
def test_gradients_in_another_order_of_axes(backend):
    """Noticed before any gradient is written."""
    program = step_program([("a", (4, 3)), ("b", (4, 3))], "sgd", lr=0.5)
    given = np.ones((4, 3), np.float32)
    grads = {"b@GRAD": given, "a@GRAD": given.T.copy().T}
    bound = started(program, put(backend, {"a": given, "b": given}), backend=backend, gradients=grads)
    with pytest.raises(ValueError, match=r"backward: 'a@GRAD': .*expected the axis order of"):
        bound.step(lr=0.25)
    assert not bound.read("b@GRAD").any()
    grads["a@GRAD"] = given
    bound.step()
    assert (bound.read("a") == 0.5).all()


@pytest.mark.parametrize("kind", REMAINDERS)
@BACKENDS
def test_remainders_start_at_zero(backend, kind):
    """What a bf16 parameter and its remainder stand for is then the parameter."""
    bfloat16 = pytest.importorskip("ml_dtypes").bfloat16
    config = Config("bfloat16", "bfloat16", "float32", kind)
    program = step_program([("a", (5,))], "momentum", config=config, lr=2.0**-12, mu=0.5)
    given = {"a@GRAD": placed(backend, np.ones(5, bfloat16))}
    made = run(program, {"a": placed(backend, np.ones(5, bfloat16))}, backend=backend, gradients=given)
    assert remainder.join(made.read("a"), made.read("a_fp32_master_0")).tolist() == [1 - 2.0**-12] * 5


def test_states_in_8_bits_do_not_tell_another_order_of_axes():
    program = step_program([("a", (4, 3))], "adam", state_dtype="uint8", lr=0.5)
    with pytest.raises(ValueError, match=r"adam: 'a', whose states are in 8 bits: expected a C-.* strides \(4, 16\)"):
        started(program, {"a": np.ones((3, 4), np.float32).T})


def test_scalars_of_a_buffer_stay_there():
    program = passes.fuse_optimizer(step_program([("a", (3,)), ("b", (2,))], "adam", lr=0.5), form="flat").program
    bound = started(program, {"a": ones(), "b": ones(2)}, gradients=lambda name, step: ones(program.vars[name].shape))
    with pytest.raises(ValueError, match="adam: beta2_pow: expected 'b_beta2_pow_acc_0' in its buffer, got it elsewhe"):
        bound.rebind({"b_beta2_pow_acc_0": np.full(1, 0.999, np.float32)})


@BACKENDS
def test_gradients_that_change_in_their_array(backend):
    program, gradient = step_program([("a", (3,))], "sgd", lr=1.0), ones()
    bound = started(program, put(backend, {"a": ones()}), backend=backend, gradients={"a@GRAD": gradient})
    for expected in (0, -2):
        bound.step()
        assert bound.read("a").tolist() == [expected] * 3
        gradient += 1


def test_what_was_replaced_is_left_alone():
    program = step_program([("a", (3,))], "sgd", lr=0.5)
    old, new = ones(), np.zeros(3, np.float32)
    bound = started(program, {"a": old}, gradients=lambda name, step: ones())
    bound.rebind({"a": new})
    bound.step()
    bound.copy_back()
    assert old.tolist() == [1, 1, 1] and new.tolist() == [-0.5, -0.5, -0.5]


def test_a_refused_array_leaves_no_block_behind():
    """Ops that cut arrays into blocks put them in as they are bound."""
    params = [("w", (8, 4)), *((name, (3,)) for name in "utsr")]
    made = send_to_owners(step_program(params, "sgd", lr=0.5), 2, min_block_size=4).program

    def rank(world):
        mine = passes.fuse_broadcasts(on_device(made, world.rank)).program
        bound = bound_on(mine, world)
        bound.step()
        view = next(view for views in mine.views.values() for view in views)
        before = {name: bound.read(name).tobytes() for name in bound.arrays}
        with pytest.raises(ValueError):
            bound.rebind({"w@GRAD": np.full((8, 4), 7, np.float32), view: np.zeros(3, np.float32)})
        return before == {name: bound.read(name).tobytes() for name in bound.arrays}

    assert local.run(rank, 2) == [True, True]


def test_blocks_are_not_for_the_caller():
    """Their memory is that of the variable that is cut, which may be bound anew."""
    made = send_to_owners(step_program([("w", (8, 4))], "sgd", lr=0.5), 2, min_block_size=4).program

    def rank(world):
        mine = on_device(made, world.rank)
        for block in mine.whole_of:
            with pytest.raises(ValueError, match=f"bind: arrays: expected no array for '{block}', which is a blo"):
                bind(mine, {"w": np.zeros((8, 4), np.float32), block: np.zeros((4, 4), np.float32)}, comm=world)
        given = ones(32).reshape(8, 4)
        bound = started(mine, {"w": given.copy()}, comm=world, gradients=lambda name, step: given)
        bound.step()
        bound.rebind({"w": given.copy()})
        bound.step()
        assert not bound.read("w").any(), "the owners of its blocks have them from startup on"
        return len(mine.whole_of)

    assert max(local.run(rank, 2)) == 2


# What ranks agree on.


@pytest.mark.parametrize("change", ["order", "align_size", "names"])
def test_ranks_agree_on_how_gradients_lie(change):
    """Sums of ranges that have other tensors at the same place, or other padding, are refused as they are bound.

    In which order an op names them does not matter.
    """
    program = passes.fuse_all_reduce(
        passes.coalesce_gradients(adam(PARAMS[:2], world_size=2), "by_count", count=2).program).program

    def edited(op):
        if change == "names" and op.type == "all_reduce":
            return op.replace(inputs={"x": op.reads[::-1]}, outputs={"out": op.reads[::-1]})
        if change == "order" and op.type == "coalesce_tensor":
            names = op.inputs["input"][::-1]
            return op.replace(inputs={"input": names}, outputs={**op.outputs, "output": names})
        if change == "align_size" and "align_size" in op.attrs:
            return op.replace(attrs={**op.attrs, "align_size": 8192})
        return op

    other = program.replace(startup=map(edited, program.startup), main=map(edited, program.main))

    def rank(world):
        bound_on(other if world.rank else program, world)

    message = r"agree: call 2: rank 0 has main all_reduce of .*, rank 1 has main all_"
    with contextlib.nullcontext() if change == "names" else pytest.raises(CommError, match=message):
        local.run(rank, 2)
