"""The MPI engine, in processes of its own: tests/comm/mpi_cases.py under mpiexec."""

import sys
import zlib
from pathlib import Path

import needs
import numpy as np
import pytest

from refopt.comm import local

pytest.importorskip("mpi4py", reason="mpi4py is not installed")
from comm import processes
from comm.comm_cases import values

LIMIT = 60  # seconds, far more than any of them takes


@pytest.fixture(autouse=True, scope="module")
def ranks():
    needs.ranks()


def run(case, ranks):
    """Run a case on so many ranks; its status, its output, and the seconds it took."""
    command = [needs.mpiexec(), "-n", str(ranks), sys.executable, "-X", "faulthandler", "mpi_cases.py", case]
    here = Path(__file__).parent
    return processes.run(command, f"{case} on {ranks} ranks", LIMIT, here, OMP_NUM_THREADS="1")


@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_the_bits_are_those_of_numpy_and_of_the_local_engine(ranks):
    status, output, _ = run("agrees_with_numpy_and_the_local_engine", ranks)
    assert status == 0, output


@pytest.mark.parametrize("case", ["unwatched", "native", "agreement"])
def test_on_three_ranks(case):
    status, output, _ = run(case, 3)
    assert status == 0, output


def test_a_sum_has_the_same_bits_as_in_process():
    def rank(world):
        x = values(world.rank, "float32", 1000)
        world.all_reduce(x)
        return x

    status, output, _ = run("checksum", 4)
    assert status == 0 and f"bits {zlib.crc32(local.run(rank, 4)[0].tobytes())}" in output, output


@pytest.mark.parametrize("ranks", [2, 4])
def test_a_skipped_collective_is_reported_by_all_at_once(ranks):
    status, output, seconds = run("skipped", ranks)
    last = ranks - 1
    assert status != 0 and seconds < 15, output
    for rank in range(last):
        other = f"rank {last} waits in broadcast of 12 float32 from 0"
        assert f"CommError: rank {rank} waits in all_reduce of 12 float32, call 1; {other}\n" in output, output
    others = "; ".join(f"rank {rank} waits in all_reduce of 12 float32" for rank in range(last))
    assert f"CommError: rank {last} waits in broadcast of 12 float32 from 0, call 1; {others}\n" in output, output


def test_a_rank_that_does_not_come_is_named_when_the_time_is_up():
    status, output, seconds = run("absent", 3)
    assert status != 0 and 0.5 < seconds < 15, output
    for rank in range(2):
        waits = f"CommError: rank {rank} waits in all_reduce of 12 float32, call 1; not heard from rank 2 in 0.5 s"
        assert f"{waits}; rank 2 was last heard of in barrier, call 0\n" in output, output


def test_the_time_is_up_without_watch_too():
    status, output, seconds = run("absent_unwatched", 2)
    assert status != 0 and 0.5 < seconds < 15, output
    assert "CommError: rank 0 waits in all_reduce of 12 float32, call 0; not done in 0.5 s" in output, output


@pytest.mark.parametrize(
    ("case", "expected"),
    [
        ("ended", "CommError: rank 0 waits in barrier, call 0; rank 1 has ended"),
        ("raised", "CommError: rank 0 waits in recv of 4 float32 from 1; rank 1 has ended"),
        ("short", "CommError: rank 1 in recv of 4 float32 from 0: expected 16 bytes, got 12"),
    ],
)
def test_an_end_to_the_others(case, expected):
    status, output, seconds = run(case, 2)
    assert status != 0 and seconds < 15, output
    assert expected in output, output
    assert case != "raised" or "ValueError: no gradient" in output


def test_device_arrays_are_refused():
    from refopt import comm, simt

    world = comm.mpi.connect()  # of this process alone
    x = simt.cuda.to_device(np.zeros(3, np.float32))
    with pytest.raises(TypeError, match=r"all_reduce: array: expected a NumPy array, got refopt\.simt"):
        world.all_reduce(x)
    with pytest.raises(ValueError, match=r"algorithm: expected one of rank_order, native, got 'ring'"):
        comm.mpi.connect(algorithm="ring")
    world.close()


@pytest.mark.parametrize("watch", [False, True])
def test_closed(watch):
    from refopt import comm
    from refopt.comm.interface import CommError

    with comm.mpi.connect(watch=watch) as world:
        world.barrier()
    with pytest.raises(CommError, match="all_reduce: no more calls can be made: it is closed"):
        world.all_reduce(np.zeros(3, np.float32))
    world.close()  # once more changes nothing


@pytest.mark.parametrize(("ended", "all_of_them"), [(set(), False), ({1}, False), ({1, 2}, True)])
def test_whether_all_others_are_at_their_end(ended, all_of_them):
    from types import SimpleNamespace

    from refopt import comm

    watch = SimpleNamespace(ended=set(), others=[1, 2], listen=lambda: watch.ended.update(ended))
    assert comm.mpi._all_ended(watch) == all_of_them
    assert not comm.mpi._all_ended(None)
