"""The local engine: what it computes, and what it says of ranks that do not fit together."""

import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from comm.comm_cases import array, assert_equal_bits, everything, groups, refused
from refopt import comm, simt
from refopt.checks.dtypes import SIZES
from refopt.comm import CommError, local
from refopt.comm.calls import DTYPES
from refopt.simt import cuda

SCHEDULES = "forward", "reverse", "random"


@given(size=st.integers(1, 8), dtype=st.sampled_from(list(DTYPES)), seed=st.integers(0, 2**16),
       schedule=st.sampled_from(SCHEDULES), turns=st.integers(0, 2**16))
def test_no_schedule_shows(size, dtype, seed, schedule, turns):
    for found in local.run(everything, size, (dtype,), seed, schedule=schedule, seed=turns):
        assert_equal_bits(found)


def test_schedules_are_other_orders_and_repeatable():
    def order(schedule, seed=0):
        seen = []

        def rank(world):
            for _ in range(2):
                seen.append(world.rank)
                world.barrier()

        local.run(rank, 4, schedule=schedule, seed=seed)
        return seen

    assert order("forward") == [0, 1, 2, 3] * 2 and order("reverse")[:4] == [3, 2, 1, 0]
    assert order("random", 1) == order("random", 1)
    some = [order("random", seed) for seed in range(8)]
    assert all(len({tuple(both[turn]) for both in some}) > 4 for turn in (slice(4), slice(4, 8)))
    with pytest.raises(ValueError, match=r"local\.run: schedule: expected one of forward, reverse, random, got 'b"):
        order("backward")


@pytest.mark.parametrize("size", [1, 2, 3, 5])
@pytest.mark.parametrize("schedule", SCHEDULES)
def test_groups(size, schedule):
    for found in local.run(groups, size, schedule=schedule):
        assert_equal_bits(found)


def test_a_group_of_a_group():
    def rank(world):
        part = world.group([3, 1, 2])
        inner = part.group([2, 0]) if part is not None else None
        if inner is None:
            return None
        x = np.array([world.rank], np.int32)
        inner.broadcast(x, 0)
        return inner.rank, inner.members, inner.name, x[0], repr(inner)

    shown = "<LocalCommunicator rank {} of 2, group (2, 3)>".format
    assert local.run(rank, 4) == [
        None, None, (0, (2, 3), "group (2, 3)", 2, shown(0)), (1, (2, 3), "group (2, 3)", 2, shown(1))]
    assert local.run(repr, 1) == ["<LocalCommunicator rank 0 of 1>"]


def test_what_nobody_observed_is_written():
    def rank(world):
        x = cuda.to_device(np.ones(4, np.float32)) if world.rank else cuda.device_array(4, np.float32)
        world.broadcast(x, 1)
        return x

    x = local.run(rank, 2)[0]
    with simt.observe(watch=True):
        assert x.copy_to_host().tolist() == [1] * 4


def other_operation(world):
    world.all_reduce(array())
    if world.rank < 2:
        world.all_reduce(array()) if world.rank == 0 else world.broadcast(array(), 0)


def other_order_in_a_batch(world):
    with world.batch():
        if world.rank == 1:
            world.broadcast(array(), 0)
        world.all_reduce(array())


def apart(world):
    part = world.group([0, 2])
    (world if world.rank == 2 else part or world).all_reduce(array())


def met_by(*received):
    def rank(world):
        world.send(array(), 1) if world.rank == 0 else world.rank == 1 and world.recv(array(*received), 0)

    return rank


SUM = "waits in all_reduce of 12 float32, call 0"
FROM = "waits in broadcast of 12 float32 from"
LEFT = "has returned"
# What a rank does, and what is said of ranks 0, 1 and 2.
MISMATCHES = {
    "other operation": (other_operation, "waits in all_reduce of 12 float32, call 1", f"{FROM} 0, call 1", LEFT),
    "other root": (lambda world: world.broadcast(array(), int(world.rank == 1)),
                   f"{FROM} 0, call 0", f"{FROM} 1, call 0", f"{FROM} 0, call 0"),
    "other dtype": (lambda world: world.all_reduce(array(dtype=np.float16 if world.rank == 1 else np.float32)),
                    SUM, "waits in all_reduce of 12 float16, call 0", SUM),
    "other count": (lambda world: world.all_reduce(array(13 if world.rank == 1 else 12)),
                    SUM, "waits in all_reduce of 13 float32, call 0", SUM),
    "other dtype of nothing": (lambda world: world.all_reduce(array(0, "f2" if world.rank == 1 else "f4")),
                               *(f"waits in all_reduce of 0 float{x}, call 0" for x in (32, 16, 32))),
    "one leaves": (lambda world: world.rank and world.barrier(), LEFT, *["waits in barrier, call 0"] * 2),
    "all send": (lambda world: world.send(array(), (world.rank + 1) % world.size),
                 *(f"waits in send of 12 float32 to {to}" for to in (1, 2, 0))),
    "nobody sends": (lambda world: world.rank or world.recv(array(), 2),
                     "waits in recv of 12 float32 from 2", LEFT, LEFT),
    "other count sent": (met_by(11), "waits in send of 12 float32 to 1", "waits in recv of 11 float32 from 0", LEFT),
    "other type sent": (met_by(12, "i4"), "waits in send of 12 float32 to 1", "waits in recv of 12 int32 from 0", LEFT),
    "other order in a batch": (other_order_in_a_batch, SUM,
                               f"{FROM} 0, call 0 and all_reduce of 12 float32, call 1", SUM),
    "other group": (lambda world: world.group([0, 1] if world.rank else [0, 2]),
                    "waits in group (0, 2), call 0", *["waits in group (0, 1), call 0"] * 2),
    "apart": (apart, f"{SUM} of group (0, 2)", *["waits in all_reduce of 12 float32, call 1"] * 2)}


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("what", MISMATCHES)
def test_ranks_that_do_not_fit_together(what, schedule):
    rank, *said = MISMATCHES[what]
    message, ranks = refused(rank, schedule=schedule)
    assert message == "no rank can continue: " + "; ".join(f"rank {i} {words}" for i, words in enumerate(said))
    assert ranks == {i for i, words in enumerate(said) if words != LEFT}


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_what_a_rank_raises_is_raised_and_ends_the_others(schedule):
    got = {}

    def rank(world):
        world.barrier()
        if world.rank == 1:
            raise ValueError("no gradient")
        try:
            world.all_reduce(array())
        except CommError as error:
            got[world.rank] = str(error)
            raise

    with pytest.raises(ValueError, match="no gradient") as error:
        local.run(rank, 3, schedule=schedule)
    assert set(got.values()) <= {"rank 1 raised ValueError: no gradient",
                                 "all_reduce: no more calls can be made: rank 1 raised ValueError: no gradient"}
    assert set(got) == {0, 2} and error.value.__notes__ == ["in rank 1 of 3"]


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_the_first_error_is_raised_though_others_follow(schedule):
    def rank(world):
        if world.rank == 1:
            raise ValueError("no gradient")
        try:
            world.barrier()
        except CommError:
            raise KeyError from None  # as code that cleans up may

    with pytest.raises(ValueError, match="no gradient") as error:
        local.run(rank, 2, schedule=schedule)
    assert error.value.__notes__ == ["in rank 1 of 2"]


def test_a_rank_that_has_not_started_does_not_start_after_an_error():
    started = []

    def rank(world):
        started.append(world.rank)
        raise ValueError

    with pytest.raises(ValueError):
        local.run(rank, 3)
    assert started == [0]


def test_ranks_that_catch_the_error_return():
    def rank(world):
        try:
            world.broadcast(array(), world.rank)
        except CommError:
            for after in (world.abort, world.close):  # neither changes the reason
                after()
                with pytest.raises(CommError, match="barrier: no more calls can be made: no rank can continue: rank 0"):
                    world.barrier()
            return world.rank

    assert local.run(rank, 3) == [0, 1, 2]


def test_abort_reaches_all():
    def rank(world):
        if world.rank == 1:
            world.abort()
        world.barrier()

    with pytest.raises(CommError, match=r"rank 1 called abort\(\)"):
        local.run(rank, 3)
    kept = []
    message, ranks = refused(lambda world: kept.append(world) or (world.abort() if world.rank else world.barrier()), 2)
    assert message == "rank 1 called abort()" and ranks == {0}
    with pytest.raises(CommError, match=r"barrier: no more calls can be made: rank 1 called abort\(\)"):
        kept[0].barrier()


def test_a_communicator_belongs_to_its_rank_and_its_run():
    kept = []
    local.run(kept.append, 2)
    with pytest.raises(CommError, match="barrier: no more calls can be made: the run has ended"):
        kept[0].barrier()

    def rank(world):
        kept.append(world)
        world.barrier()
        kept[-1 - world.rank].barrier()

    with pytest.raises(CommError, match="barrier: expected a call from rank 1, which owns this communicator"):
        local.run(rank, 2)


def test_closed():
    def rank(world):
        with pytest.raises(KeyError), world:
            raise KeyError  # the others may be anywhere
        with world:
            world.barrier()
        with pytest.raises(CommError, match="all_reduce: no more calls can be made: it is closed"):
            world.all_reduce(array())
        with pytest.raises(CommError, match="batch: no more calls can be made: it is closed"), world.batch():
            pass

    local.run(rank, 2)


def test_runs_nest_and_leave_numpy_error_states_alone():
    def inner(world):
        with np.errstate(over="raise"):
            world.barrier()
            return np.geterr()["over"]

    def outer(world):
        with np.errstate(over="ignore"):
            world.barrier()
            return local.run(inner, 2), np.geterr()["over"]

    with np.errstate(under="raise"):
        assert local.run(lambda world: np.geterr()["under"], 2) == ["raise"] * 2
    before = np.geterr()
    assert local.run(outer, 3, schedule="random", seed=1) == [(["raise"] * 2, "ignore")] * 3
    assert np.geterr() == before


@cuda.jit
def scale(x, factor):
    part = cuda.shared.array(32, np.float32)
    t = cuda.threadIdx.x
    part[t] = x[t]
    cuda.syncthreads()
    x[t] = part[31 - t] * factor


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_kernels_run_within_ranks(schedule):
    """Barriers of kernels switch greenlets too; they must stay within the rank that launched."""

    def rank(world):
        x = cuda.to_device(np.arange(32, dtype=np.float32) + world.rank)
        world.all_reduce(x)
        scale[1, 32](x, np.float32(world.rank + 1))
        world.barrier()
        scale[1, 32](x, np.float32(1))
        y = cuda.device_array(32 * world.size, np.float32)
        world.all_gather(x, y)
        world.all_reduce(y)
        return y.copy_to_host()

    total = 3 * np.arange(32, dtype=np.float32) + 3
    expected = np.concatenate([total * 3 * (r + 1) for r in range(3)])
    for got in local.run(rank, 3, schedule=schedule):
        assert got.tobytes() == expected.tobytes()


def test_every_operation_on_device_arrays():
    def rank(world):
        return everything(world, tuple(SIZES), 3, cuda.to_device, lambda array: array.copy_to_host())

    for found in local.run(rank, 2):
        assert_equal_bits(found)


def test_an_observer_lists_collectives_among_the_copies():
    def rank(world):
        x = cuda.to_device(np.ones(4, np.float32))
        x.name = f"x{world.rank}"
        world.broadcast(x, 1)
        scale[1, 32](cuda.to_device(np.ones(32, np.float32)), np.float32(1))

    with simt.observe() as log:
        local.run(rank, 2)
    seen = [(c.kind, c.nbytes, c.source, c.target) for c in log.copies if c.kind == "broadcast"]
    assert seen == [("broadcast", 16, None, "x0"), ("broadcast", 16, "x1", None)] and len(log.launches) == 2


def test_a_collective_orders_streams_as_the_default_stream_does():
    def rank(world, between):
        x = cuda.to_device(np.ones(32, np.float32))
        a, b = cuda.stream(), cuda.stream()
        scale[1, 32, a](x, np.float32(2))
        if between:
            world.all_reduce(x)
        scale[1, 32, b](x, np.float32(2))

    with simt.observe(count=False, watch=True):
        local.run(rank, 2, True)
    with pytest.raises(simt.DataRace), simt.observe(count=False, watch=True):
        local.run(rank, 2, False)


def test_a_call_from_within_a_kernel_is_refused():
    def rank(world):
        barrier = simt.ptx_twin()(lambda: world.barrier())

        @cuda.jit
        def kernel():
            barrier()

        kernel[1, 1]()

    with pytest.raises(CommError, match="barrier: expected a call from a rank, got one from within a kernel"):
        local.run(rank, 2)


def test_engines_are_imported_on_use():
    assert comm.local is local
    with pytest.raises(AttributeError, match=r"module 'refopt\.comm' has no attribute 'gloo'"):
        comm.gloo  # noqa: B018


@pytest.mark.parametrize(("use", "package"), [("mpi", "mpi4py"), ("nccl.connect(0, 1, 'x')", "nccl")])
def test_a_missing_package_is_named(use, package):
    script = f"import sys; sys.modules[{package!r}] = None; from refopt import comm; comm.local; comm.{use}"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60)
    engine = use.partition(".")[0]
    assert f"ImportError: refopt.comm.{engine} needs " in done.stderr and f"'refopt[{engine}]'" in done.stderr
