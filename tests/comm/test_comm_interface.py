"""What all engines share, seen on the local one: batches, counts, agreement, and what is refused."""

import re

import numpy as np
import pytest

from comm.comm_cases import array, refused
from refopt.comm import CommError, Counted, local


def test_a_batch_runs_at_its_end_and_its_sends_all_at_once():
    def rank(world):
        x, y, z = np.array([world.rank], np.int32), np.zeros(1, np.int32), np.ones(1, np.float32)
        with world.batch():
            world.send(x, 1 - world.rank)
            world.recv(y, 1 - world.rank)
            with world.batch():
                world.all_reduce(z)
            world.broadcast(z, 1)
            seen = y[0], z[0], world.counts
            x += 10
        return seen, y[0], z[0]

    empty = (0, 1, {})
    assert local.run(rank, 2) == [(empty, 11, 2), (empty, 10, 2)]


def test_send_to_itself():
    def rank(world):
        x, y = np.ones(2, np.float32), np.zeros(2, np.float32)
        with world.batch():
            world.recv(y, world.rank)
            world.send(x, world.rank)
        return y.tolist()

    assert local.run(rank, 2) == [[1, 1]] * 2


# The calls of a batch, of an array of 12 and another rank, and the two calls of rank 0 that share memory.
SHARED = {"goes round in itself": (lambda w, x, other: (w.send(x, other), w.recv(x, other)),
                                   "call 1, recv of 12 float32 from 1", "call 0, send of 12 float32 to 1"),
          "part of what is sent": (lambda w, x, other: (w.recv(x[:6], other), w.send(x[5:11], other)),
                                   "call 1, send of 6 float32 to 1", "call 0, recv of 6 float32 from 1"),
          "received twice": (lambda w, x, other: (w.recv(x, 0), w.send(array(), other), w.recv(x, 1)),
                             "call 2, recv of 12 float32 from 1", "call 0, recv of 12 float32 from 0"),
          "sent and summed": (lambda w, x, other: (w.send(x, other), w.recv(array(), other), w.all_reduce(x)),
                              "call 2, all_reduce of 12 float32", "call 0, send of 12 float32 to 1"),
          "beyond a shorter one": (lambda w, x, other: (w.send(x, other), w.send(x[1:2], other), w.recv(x[5:6], other)),
                                   "call 2, recv of 1 float32 from 1", "call 0, send of 12 float32 to 1"),
          "received and gathered": (lambda w, x, other: (w.all_gather(x, array(24)), w.recv(x[3:4], other)),
                                    "call 1, recv of 1 float32 from 1", "call 0, all_gather of 12 float32"),
          "prepared": (lambda w, x, other: (w.prepared("send", x, other)(), w.prepared("recv", x, other)()),
                       "call 1, recv of 12 float32 from 1", "call 0, send of 12 float32 to 1")}


@pytest.mark.parametrize("schedule", ["forward", "reverse"])
@pytest.mark.parametrize("what", SHARED)
def test_messages_of_a_batch_have_memory_of_their_own(what, schedule):
    """What is sent and received at once must not depend on the ranks' turns."""
    exchange, this, other = SHARED[what]

    def rank(world):
        with pytest.raises(ValueError, match=r"^batch: call \d") as error, world.batch():
            exchange(world, array(), 1 - world.rank)
        if world.rank == 0:
            assert str(error.value) == f"batch: {this}: expected memory of its own, got an overlap with {other}"
        assert world.counts == {}
        world.barrier()  # nobody was left waiting

    local.run(rank, 2, schedule=schedule)


@pytest.mark.parametrize("schedule", ["forward", "reverse"])
def test_what_calls_of_a_batch_may_share(schedule):
    """Several send one array, which others read; messages lie side by side; collectives are made in order."""

    def rank(world):
        x, y, z = array(4), np.zeros(8, np.float32), np.ones(4, np.float32)
        with world.batch():
            for k in range(2):
                world.send(x, 1 - world.rank)
                world.recv(y[4 * k : 4 * k + 4], 1 - world.rank)
            world.send(x[:0], 1 - world.rank)
            world.recv(x[2:][:0], 1 - world.rank)
            world.reduce_scatter(x, z[:2])
            world.all_reduce(z)
            world.broadcast(z, 0)
        return y.tolist() == 2 * x.tolist()

    assert local.run(rank, 2, schedule=schedule) == [True, True]


def test_a_batch_that_raises_makes_no_call():
    def rank(world):
        x = np.ones(2, np.float32)
        if world.rank == 0:
            with world.batch():
                pass  # one of no calls waits for nobody
        with pytest.raises(KeyError), world.batch():
            world.all_reduce(x)
            raise KeyError
        world.all_reduce(x)
        return x.tolist(), world.counts["all_reduce"].calls

    assert local.run(rank, 2) == [([2, 2], 1)] * 2


@pytest.mark.parametrize("operation", ["barrier", "group", "agree", "gather_bytes"])
def test_what_cannot_be_in_a_batch(operation):
    def rank(world):
        arguments = {"group": ([0],), "agree": ([],), "gather_bytes": (b"",)}.get(operation, ())
        with world.batch():
            getattr(world, operation)(*arguments)

    with pytest.raises(CommError, match=rf"{operation}: expected a call outside batch\(\), got one inside it"):
        local.run(rank, 2)


def test_counts():
    def rank(world):
        x, part, whole = array(6), array(3, np.float16), array(6, np.float16)
        assert world.counts == {}
        world.all_reduce(x)
        world.all_reduce(x[:0])
        world.reduce(x, 0)
        world.broadcast(x[:2], 1)
        world.reduce_scatter(whole, part)
        world.all_gather(part, whole)
        (world.send if world.rank else world.recv)(x, 1 - world.rank)
        world.barrier()
        world.group([0]), world.agree([])
        counts = world.counts
        world.reset_counts()
        assert world.counts == {}
        world.barrier()
        with pytest.raises(TypeError):
            world.all_reduce(None)
        assert world.counts == {"barrier": Counted(1, 0)}
        return counts

    common = {"all_reduce": Counted(2, 24), "reduce": Counted(1, 24), "broadcast": Counted(1, 8),
              "reduce_scatter": Counted(1, 12), "all_gather": Counted(1, 6), "barrier": Counted(1, 0)}
    first, second = local.run(rank, 2)
    assert first == common | {"recv": Counted(1, 24)} and second == common | {"send": Counted(1, 24)}


def test_bytes_of_all_ranks():
    """Of any length, in rank order; what is none is refused before the others wait for it."""
    brought = [b"a" * rank for rank in range(3)]
    found = local.run(lambda world: world.gather_bytes(brought[world.rank]), 3)
    assert found == [brought] * 3 and found[0] is not found[1], "each rank has a list of its own"
    with pytest.raises(TypeError, match="gather_bytes: data: expected bytes, got 'a'"):
        local.run(lambda world: world.gather_bytes("a"), 2)


def test_agreement():
    local.run(lambda world: world.agree(["all_reduce of 4 float32", "barrier"]), 4)

    def rank(world):
        same = ["barrier"] * 700
        world.agree([*same, "broadcast" if world.rank == 2 else "all_reduce of 1024 float32", f"of {world.rank}"])

    message, ranks = refused(rank, 4)
    assert message == "agree: call 700: ranks 0, 1 and 3 have all_reduce of 1024 float32, rank 2 has broadcast"
    assert ranks == {0, 1, 2, 3}
    message, _ = refused(lambda world: world.agree(["barrier"] * world.rank), 2)
    assert message == "agree: call 0: rank 0 has no call, rank 1 has barrier"
    for wrong in ("barrier", 3, b"barrier", ["barrier", 3]):
        got = "[1]: expected a name" if isinstance(wrong, list) else ": expected a sequence of names"
        with pytest.raises(TypeError, match=re.escape(f"agree: description{got}, got ")):
            local.run(lambda world, wrong=wrong: world.agree(wrong), 1)
    # Entries are compared one by one: these run together alike.
    message, _ = refused(lambda world: world.agree([["ab", "c"], ["a", "bc"]][world.rank]), 2)
    assert message == "agree: call 0: rank 0 has ab, rank 1 has a"
    message, _ = refused(lambda world: world.agree(word for word in ("barrier", f"of {world.rank}")), 2)
    assert message == "agree: call 1: rank 0 has of 0, rank 1 has of 1"


def test_agreement_on_values():
    """Of ranks that have a name; 1 and 1.0 are equal. The calls come first."""
    held = [{"a": 1, "b": 2.0}, {"a": 1.0, "c": "x"}, {"b": 3.0}]
    local.run(lambda world: world.agree(["same"], held[world.rank]), 2)
    message, _ = refused(lambda world: world.agree(["same"], held[world.rank]), 3)
    assert message == "agree: b: rank 0 has 2.0, rank 2 has 3.0"
    message, _ = refused(lambda world: world.agree([str(world.rank)], held[world.rank]), 3)
    assert message == "agree: call 0: rank 0 has 0, rank 1 has 1, rank 2 has 2"
    with pytest.raises(TypeError, match="agree: common: expected a dictionary, got list"):
        local.run(lambda world: world.agree([], ["a"]), 1)


def read_only(count):
    x = array(count)
    x.flags.writeable = False
    return x


BAD = [(lambda w: w.all_reduce([1.0]), TypeError,
        "all_reduce: array: expected a NumPy array or an array of the executor, got builtins.list"),
       (lambda w: w.all_reduce(array(3, np.int16)), TypeError,
        "all_reduce: array: expected one of float16, .*, uint64, got int16"),
       (lambda w: w.all_reduce(array(3, ">f4")), TypeError, "all_reduce: array: expected native byte order, got >f4"),
       (lambda w: w.all_reduce(array(6)[::2]), ValueError,
        r"all_reduce: array: expected a C-contiguous array, got strides \(8,\) for \(3,\)"),
       (lambda w: w.all_reduce(read_only(3)), ValueError,
        "all_reduce: array: expected a writable array, got a read-only one"),
       (lambda w: w.reduce(read_only(3), 0), ValueError, "reduce: array: expected a writable array"),
       (lambda w: w.broadcast(read_only(3), 1), ValueError, "broadcast: array: expected a writable array"),
       (lambda w: w.recv(read_only(3), 1), ValueError, "recv: array: expected a writable array"),
       (lambda w: w.reduce_scatter(array(4), read_only(2)), ValueError,
        "reduce_scatter: target: expected a writable array"),
       (lambda w: w.reduce(array(), 2), ValueError, "reduce: root: expected a rank from 0 to 1, got 2"),
       (lambda w: w.broadcast(array(), -1), ValueError, "broadcast: root: expected a rank from 0 to 1, got -1"),
       (lambda w: w.broadcast(array(), True), TypeError, "broadcast: root: expected a rank, got True"),
       (lambda w: w.send(array(), "1"), TypeError, "send: to: expected a rank, got '1'"),
       (lambda w: w.recv(array(), 1.0), TypeError, "recv: source: expected a rank, got 1.0"),
       (lambda w: w.reduce_scatter(array(5), array(2)), ValueError,
        "reduce_scatter: source: expected 4 elements, 2 ranks times the 2 of target, got 5"),
       (lambda w: w.all_gather(array(2), array(5)), ValueError,
        "all_gather: target: expected 4 elements, 2 ranks times the 2 of source, got 5"),
       (lambda w: w.all_gather(array(2), array(4, np.float16)), TypeError,
        "all_gather: target: expected float32, as source has, got float16"),
       (lambda w: (lambda x: w.all_gather(x[2:4], x))(array(4)), ValueError,
        "all_gather: source: expected no overlap, or in place, at byte 0 of target, got an overlap from byte 8"),
       (lambda w: (lambda x: w.reduce_scatter(x[:4], x[3:5]))(array(5)), ValueError,
        "reduce_scatter: target: expected no overlap, or in place, at byte 0 of source, got an overlap from byte 12"),
       (lambda w: w.group([]), TypeError, r"group: ranks: expected a list of at least one rank, got \[\]"),
       (lambda w: w.group([0, 2]), ValueError, r"group: ranks\[1\]: expected a rank from 0 to 1, got 2"),
       (lambda w: w.group([0, 1, 0]), ValueError, r"group: ranks\[2\]: expected each rank once, got 0 again")]


@pytest.mark.parametrize(("call", "kind", "message"), BAD)
def test_bad_input_is_refused_before_anything_moves(call, kind, message):
    def rank(world):
        if world.rank == 0:
            with pytest.raises(kind, match=f"^{message}"):
                call(world)
            assert world.counts == {}
        world.barrier()  # nobody was left waiting

    local.run(rank, 2)


def test_read_only_arrays_may_be_read():
    def rank(world):
        world.reduce(read_only(3) if world.rank else array(3), 0)
        world.broadcast(array(3) if world.rank else read_only(3), 0)
        world.all_gather(read_only(3), array(6))
        world.reduce_scatter(read_only(4), array(2))
        x = array(6)
        world.all_gather(x[4:], x[:4])  # side by side
        world.all_gather(x[:2], x[2:])
        (world.send if world.rank else world.recv)(read_only(3) if world.rank else array(3), 1 - world.rank)

    local.run(rank, 2)


# Calls that are prepared.


def test_a_prepared_call_is_made_whenever_it_is_called():
    """By the values that its arrays then hold, alone and within a batch; preparing it moves nothing and counts none."""

    def rank(world):
        x, y = np.full(2, world.rank + 1, np.float32), np.zeros(4, np.float32)
        reduce, gather = world.prepared("all_reduce", x), world.prepared("all_gather", x, y)
        assert world.counts == {} and x.tolist() == [world.rank + 1] * 2
        reduce()
        reduce()
        with world.batch():
            reduce()
            gather()
            assert x[0] == 6, "nothing is done before the end"
        message = world.prepared("send", x, 1) if world.rank == 0 else world.prepared("recv", x, 0)
        x[:] = world.rank
        message()
        return x.tolist(), y.tolist(), {name: count.calls for name, count in world.counts.items()}

    first, second = local.run(rank, 2)
    assert first[:2] == ([0, 0], [12] * 4) and second[:2] == ([0, 0], [12] * 4)
    assert first[2] == {"all_reduce": 3, "all_gather": 1, "send": 1}


def test_a_call_is_refused_as_it_is_prepared():
    def rank(world):
        with pytest.raises(ValueError, match=r"prepared: operation: expected one of all_reduce, .*, got 'barrier'"):
            world.prepared("barrier")
        with pytest.raises(ValueError, match="reduce: root: expected a rank from 0 to 0, got 1"):
            world.prepared("reduce", np.zeros(2, np.float32), 1)
        with pytest.raises(TypeError, match=r"all_reduce: array: expected one of .*, got bool"):
            world.prepared("all_reduce", np.zeros(2, bool))
        with world.batch(), pytest.raises(ValueError, match="all_reduce: array: expected a C-contiguous array"):
            world.prepared("all_reduce", np.zeros((2, 2), np.float32).T)
        call = world.prepared("all_reduce", np.ones(2, np.float32))
        world.barrier()  # in no batch, though some were refused
        assert world.counts["barrier"].calls == 1
        world.close()
        with pytest.raises(CommError, match="all_reduce: no more calls can be made: it is closed"):
            call()

    local.run(rank, 1)
