"""The NCCL engine: its own part against a stand-in for nccl4py, and all of it on two GPUs."""

import importlib
import re
import sys
import threading
import time
import types
from pathlib import Path

import needs
import numpy as np
import pytest

from comm import fake_nccl, processes
from comm.comm_cases import assert_equal_bits, everything, groups
from comm.fake_nccl import OnDevice
from refopt import comm
from refopt.comm import CommError
from refopt.comm.calls import DTYPES

HERE = Path(__file__).parent


@pytest.fixture
def nccl(monkeypatch):
    """The engine on the stand-in."""
    needs.compiler()
    monkeypatch.setitem(sys.modules, "nccl", types.SimpleNamespace(core=fake_nccl))
    monkeypatch.setitem(sys.modules, "nccl.core", fake_nccl)
    monkeypatch.setitem(sys.modules, "nccl.bindings", types.SimpleNamespace(nccl=fake_nccl.calls))
    for holder, name in ((sys.modules, "refopt.comm.nccl"), (vars(comm), "nccl")):
        if name in holder:
            monkeypatch.delitem(holder, name)
    engine = importlib.import_module("refopt.comm.nccl")
    for name in ("driver", "Device", "checked"):
        monkeypatch.setattr(engine, name, getattr(fake_nccl, name))
    yield engine
    del sys.modules["refopt.comm.nccl"]
    vars(comm).pop("nccl", None)


def run(nccl, function, size, path, timeout=30.0, blocking=True):
    """Run a function on every rank, in threads: what each returned or raised."""
    results = [None] * size

    def rank(number):
        try:
            results[number] = function(nccl.connect(number, size, path, timeout=timeout, blocking=blocking))
        except BaseException as error:
            results[number] = error

    threads = [threading.Thread(target=rank, args=(number,), daemon=True) for number in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive(), "a rank hangs"
    return results


def reading(world):
    def read(placed):
        world.synchronize()
        return placed.array

    return read


def test_a_group_of_a_group_has_files_of_its_own(nccl, tmp_path):
    def rank(world):
        part = world.group([0, 1])
        inner = part.group([0, 1])  # made by the call of the same number
        found = [*part.gather_bytes(b"part"), *inner.gather_bytes(b"a"), *inner.gather_bytes(b"b")]
        for one in (inner, part, world):
            one.close()
        return found

    assert run(nccl, rank, 2, tmp_path) == [[b"part"] * 2 + [b"a"] * 2 + [b"b"] * 2] * 2


OTHERS = [pytest.param(*both, marks=pytest.mark.slow) for both in ((1, True), (2, True), (3, False))]


@pytest.mark.parametrize(("size", "blocking"), [(2, False), (3, True), *OTHERS])
def test_what_is_asked_of_nccl(nccl, tmp_path, size, blocking):
    dtypes = tuple(DTYPES) if size == 2 else ("float32", "bfloat16")

    kept = []  # what is enqueued must stay

    def place(array):
        kept.append(OnDevice(array))
        return kept[-1]

    def under_way(world):
        if world.rank == size - 1:
            time.sleep(0.05)
        world.all_reduce(place(np.ones(3, np.float32)))

    def rank(world):
        with world:
            found = everything(world, dtypes, place=place, read=reading(world))
            under_way(world)  # when the group is asked for
            found += groups(world, place=place, read=reading(world))
            world.agree(["all_reduce"] * 3)
            with pytest.raises(CommError, match=r"agree: call 1: .*rank 0 has 0") if size > 1 else np.errstate():
                world.agree(["same", str(world.rank)])
            under_way(world)  # when it is closed
        assert all(communicator.aborted for communicator in fake_nccl._mine.comms)
        with pytest.raises(CommError, match="all_reduce: no more calls can be made: it is closed"):
            world.all_reduce(OnDevice(np.ones(1, np.float32)))
        return found

    for result in run(nccl, rank, size, tmp_path, blocking=blocking):
        if isinstance(result, BaseException):
            raise result
        assert_equal_bits(result)
    assert not fake_nccl._memory  # all given back


def reports(nccl, function, size, path, timeout):
    results = run(nccl, function, size, path, timeout)
    assert all(isinstance(result, CommError) for result in results), results
    return [str(result) for result in results]


def test_a_skipped_collective_is_reported_by_both(nccl, tmp_path):
    def rank(world):
        x = OnDevice(np.ones(12, np.float32))
        world.barrier()
        if world.rank == 0:
            world.all_reduce(x)
        world.broadcast(x, 0)
        world.barrier()

    first, second = reports(nccl, rank, 2, tmp_path, 0.4)
    texts = {"rank 0": "all_reduce of 12 float32", "rank 1": "broadcast of 12 float32 from 0"}
    for message, me, other in ((first, "rank 0", "rank 1"), (second, "rank 1", "rank 0")):
        told = f"{other} has {texts[other]} as call 1, this rank {texts[me]}" in message
        assert told or f"{other}: " in message, message  # one of them may first hear that the other has given up
    assert "as call 1" in first + second


def test_a_rank_that_does_not_come_is_named(nccl, tmp_path):
    late = threading.Event()

    def rank(world):
        world.barrier()
        if world.rank == 2:
            late.wait(20)
        try:
            world.all_reduce(OnDevice(np.ones(4, np.float32)))
            world.synchronize()
        finally:
            late.set()

    messages = reports(nccl, rank, 3, tmp_path, 0.4)
    assert any("synchronize: not done in 0.4 s; rank 2 was silent" in message for message in messages)
    assert all("rank 2" in message for message in messages)


def test_a_rank_that_has_made_no_collective_call_is_named(nccl, tmp_path):
    def rank(world):
        x = OnDevice(np.ones(4, np.float32))
        world.send(x, 0) if world.rank else world.all_reduce(x)
        world.synchronize(20.0 if world.rank else 0.6)

    first, second = reports(nccl, rank, 2, tmp_path, 30)
    assert first == "rank 0: synchronize: not done in 0.6 s; rank 1 was last heard from in no call" and first in second


def test_a_rank_that_has_closed_is_named(nccl, tmp_path):
    def rank(world):
        world.barrier()
        if world.rank == 1:
            return world.close()
        world.all_reduce(OnDevice(np.ones(4, np.float32)))
        return world.synchronize()

    first, second = run(nccl, rank, 2, tmp_path, 0.4)
    assert "not done in 0.4 s; rank 1 has closed its communicator" in str(first) and second is None


def test_a_call_that_nccl_waits_in_is_aborted(nccl, tmp_path):
    """As the first call between two ranks does, until both make it."""
    late = threading.Event()

    def rank(world):
        world.barrier()
        if world.rank == 1:
            late.wait(20)
        world._nccl.stuck = world.rank == 0
        try:
            world.all_reduce(OnDevice(np.ones(4, np.float32)))
            world.barrier()
        finally:
            late.set()

    first, second = reports(nccl, rank, 2, tmp_path, 0.4)
    assert first == "rank 0: all_reduce of 4 float32, call 1: not done in 0.4 s; rank 1 was silent"
    assert first in second


def test_an_error_of_nccl_is_reported_by_all(nccl, tmp_path):
    def rank(world):
        world.barrier()
        if world.rank == 0:
            world._nccl.broken = 6
        world.barrier()

    first, second = reports(nccl, rank, 2, tmp_path, 20)
    assert first == "rank 0: barrier, call 1: NCCL reports error 6: a link went down"
    assert second == f"rank 1: barrier, call 1: {first}"


def test_others_that_still_come_are_not_named(nccl, monkeypatch):
    monkeypatch.setattr(nccl, "_LOOK", 0.0)
    said = iter(["is late", "is late", ""])
    communicator = types.SimpleNamespace(size=2, rank=0, _compare=lambda peer: next(said))
    assert nccl.NcclCommunicator._others(communicator) == "all ranks wait in the same call"


def test_abort_reaches_the_others_and_ends_the_communicator(nccl, tmp_path):
    def rank(world):
        if world.rank == 0:
            world.abort()
            world.abort()
            assert world._nccl.aborted
        world.barrier()

    first, second = reports(nccl, rank, 2, tmp_path, 20)
    assert first == "barrier: no more calls can be made: rank 0 called abort()"
    assert second == "rank 1: barrier, call 0: rank 0 called abort()"


def test_an_abort_that_does_not_return_ends_the_process(nccl, tmp_path, monkeypatch, capsys):
    """With the reason, after the time that an abort may take."""
    left = threading.Event()
    monkeypatch.setattr(nccl, "_PATIENCE", 0.2)
    monkeypatch.setattr(nccl.os, "_exit", lambda status: left.set())

    def rank(world):
        monkeypatch.setattr(world, "_nccl", types.SimpleNamespace(abort=lambda: left.wait(10)))
        began = time.monotonic()
        world.abort()
        assert left.is_set() and time.monotonic() - began >= 0.2

    assert run(nccl, rank, 1, tmp_path) == [None]
    assert "rank 0 called abort()\nncclCommAbort did not return in 0.2 s" in capsys.readouterr().err


def test_a_rank_that_never_connects_is_named(nccl, tmp_path):
    with pytest.raises(CommError, match=r"rank 1: .*: connect: heard nothing from ranks 0 and 2 in 0\.3 s"):
        nccl.connect(1, 3, tmp_path, timeout=0.3)


def test_bad_input(nccl, tmp_path, monkeypatch):
    for name in ("RANK", "WORLD_SIZE", "REFOPT_RENDEZVOUS"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(ValueError, match=r"nccl\.connect: size: expected a value, or WORLD_SIZE in the environment"):
        nccl.connect()
    with pytest.raises(ValueError, match=r"nccl\.connect: timeout: expected a number above 0, got 0"):
        nccl.connect(0, 1, tmp_path, timeout=0)
    world = nccl.connect(0, 1, tmp_path)
    with pytest.raises(TypeError, match=r"all_reduce: array: expected a device array, got a NumPy array"):
        world.all_reduce(np.ones(3, np.float32))
    with pytest.raises(ValueError, match="all_reduce: array: expected a C-contiguous array"):
        world.all_reduce(OnDevice(np.ones(6, np.float32)[::2]))
    with pytest.raises(CommError, match="rank 0 is already registered: expected a fresh directory"):
        nccl.connect(0, 1, tmp_path)
    world.close()


def gpus():
    try:
        from numba import cuda

        return len(cuda.gpus) if cuda.is_available() else 0
    except Exception:
        return 0


def launch(case, ranks=2, limit=150):
    options = ["-n", str(ranks), "--grace", "10", str(HERE / "nccl_cases.py"), case]
    return processes.run([sys.executable, "-m", "refopt.comm.launch", *options], case, limit)


@pytest.fixture(scope="module")
def two_gpus():
    pytest.importorskip("nccl.core", reason="nccl4py is not installed")
    if gpus() < 2:
        pytest.skip(f"needs 2 GPUs, found {gpus()}")


@pytest.mark.gpu
@pytest.mark.parametrize(
    "case", ["agrees_with_numpy_and_the_local_engine", "blocking_and_a_stream", "many_at_once", "torch_tensors"])
def test_on_two_gpus(two_gpus, case):
    if case == "torch_tensors":
        pytest.importorskip("torch")
    status, output = launch(case)
    assert status == 0, output


@pytest.mark.gpu
@pytest.mark.parametrize(("case", "reports"), [
    ("skipped", ["CommError: rank 0: ", "CommError: rank 1: ", "rank [01] has "]),
    ("skipped_at_first", ["CommError: rank 0: ", "CommError: rank 1: ", "rank [01] has "]),
    ("absent", ["CommError: rank 0: ", "rank 1 was "]),
    ("never_connects", ["connect: heard nothing from rank 1 in 2 s"])])
def test_ranks_that_cannot_go_on_on_two_gpus(two_gpus, case, reports):
    status, output = launch(case, limit=90)
    assert status != 0 and all(re.search(report, output) for report in reports), output
