"""The MPI engine, in processes of its own: tests/comm/mpi_cases.py under mpiexec."""

import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace

import needs
import numpy as np
import pytest

pytest.importorskip("mpi4py", reason="mpi4py is not installed")
from comm import processes
from refopt import comm, simt
from refopt.comm.interface import CommError
from refopt.comm.watch import Watch

LIMIT = 60  # seconds, far more than any of them takes


@pytest.fixture(autouse=True, scope="module")
def ranks():
    needs.ranks()


def run(ranks, *cases):
    """Run cases on so many ranks; their status and output."""
    command = [needs.mpiexec(), "-n", str(ranks), sys.executable, "-X", "faulthandler", "mpi_cases.py", *cases]
    return processes.run(command, f"{cases} on {ranks} ranks", LIMIT, Path(__file__).parent, OMP_NUM_THREADS="1")


slow = pytest.mark.slow


@pytest.mark.parametrize("ranks", [3, *(pytest.param(n, marks=slow) for n in (1, 2, 4))])
def test_the_bits_are_those_of_numpy_and_of_the_local_engine(ranks):
    status, output = run(ranks, "agrees_with_numpy_and_the_local_engine", "unwatched", "native", "agreement")
    assert status == 0, output


def test_a_sharded_step_on_a_mesh():
    status, output = run(4, "sharded")
    assert status == 0, output


SUM = "waits in all_reduce of 12 float32"
OTHER = "waits in broadcast of 12 float32 from 0"
ENDS = {
    "skipped": (3, [f"rank 0 {SUM}, call 1; rank 2 {OTHER}\n", f"rank 1 {SUM}, call 1; rank 2 {OTHER}\n",
                    f"rank 2 {OTHER}, call 1; rank 0 {SUM}; rank 1 {SUM}\n"]),
    "absent": (3, [f"rank {rank} {SUM}, call 1; heard nothing from rank 2 in 0.5 s; rank 2 was last heard from in "
                   "barrier, call 0\n" for rank in range(2)]),
    "absent_unwatched": (2, [f"rank 0 {SUM}, call 0; not done in 0.5 s"]),
    "ended": (2, ["rank 0 waits in barrier, call 0; rank 1 has ended"]),
    "raised": (2, ["rank 0 waits in recv of 4 float32 from 1; rank 1 has ended"]),
    "raised_in_norms": (3, [f"rank {k} waits in all_reduce of 6 float32, call 3; rank 2 has ended" for k in (0, 1)]),
    "raised_in_local_steps": (3, [f"rank {k} {SUM.replace('12', '2560')}, call 2; rank 2 has ended" for k in (0, 1)]),
    "short": (2, ["rank 1 in recv of 4 float32 from 0: expected 16 bytes, got 12"])}


@pytest.mark.parametrize("case", [pytest.param(x, marks=[slow] * (x in ("absent_unwatched", "short"))) for x in ENDS])
def test_ranks_that_cannot_go_on_are_reported(case):
    """By all that wait, with what each of them is in: at once, but for ranks that are not heard from."""
    ranks, reports = ENDS[case]
    status, output = run(ranks, case)
    assert status != 0
    for report in reports:
        assert f"CommError: {report}" in output, output
    assert "raised" not in case or "ValueError: no gradient" in output


def test_what_is_refused():
    world = comm.mpi.connect()  # of this process alone
    with pytest.raises(TypeError, match=r"all_reduce: array: expected a NumPy array, got refopt\.simt"):
        world.all_reduce(simt.cuda.to_device(np.zeros(3, np.float32)))
    with pytest.raises(ValueError, match=r"algorithm: expected one of rank_order, native, got 'ring'"):
        comm.mpi.connect(algorithm="ring")
    with ThreadPoolExecutor(1) as other, pytest.raises(
            CommError, match="barrier: expected a call in the communicator's own thread, got one in another"):
        other.submit(world.barrier).result()
    world.close()


@pytest.mark.parametrize("watch", [False, True])
def test_closed(watch):
    with comm.mpi.connect(watch=watch) as world:
        world.barrier()
        with world.group([0]) as alone:
            assert (alone._watch is not None) == (world._watch is not None) == watch
    with pytest.raises(CommError, match="all_reduce: no more calls can be made: it is closed"):
        world.all_reduce(np.zeros(3, np.float32))
    world.close()  # once more changes nothing


def test_of_ranks_not_heard_from_no_call_is_known():
    assert Watch(None, 1, 3).last == {0: "no call", 2: "no call"}


class Notices:
    """What is sent is there at once."""

    def __init__(self):
        self.held = []

    def Isend(self, what, peer):
        self.held.append(what[0].copy())
        return SimpleNamespace(Test=lambda: True)

    def Iprobe(self, *_):
        return bool(self.held)

    def Recv(self, what, peer):
        what[0][...] = self.held.pop(0)


def test_what_is_heard_of_a_rank():
    """Why it has failed, though it has ended since; of a call, what all hear of it."""
    notices = Notices()
    there, here = Watch(notices, 1, 2), Watch(notices, 0, 2)
    here._status = SimpleNamespace(Get_source=lambda: 1)
    mine = there.call(0, "a" * 200)
    there.fail("is late")
    there.end()
    here.listen()
    assert here.gone == {1: "has failed: is late"} and here.ended == {1}
    assert here.said(1, 0) == mine == "a" * 126


@pytest.mark.parametrize(("ended", "all_of_them"), [(set(), False), ({1}, False), ({1, 2}, True)])
def test_whether_all_others_are_at_their_end(ended, all_of_them):
    watch = SimpleNamespace(ended=set(), others=[1, 2], listen=lambda: watch.ended.update(ended))
    assert comm.mpi._all_ended(watch) == all_of_them and not comm.mpi._all_ended(None)
