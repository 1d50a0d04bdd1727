"""What tests/comm/test_comm_mpi.py runs under mpiexec: ``python mpi_cases.py CASE ...``."""

import sys
import time

import numpy as np
import pytest
from comm_cases import agrees, assert_equal_bits, everything, groups

from refopt import comm
from refopt.comm import CommError, Mesh, local

DTYPES = "float16", "bfloat16", "float32", "float64", "uint8", "int64"


def agrees_with_numpy_and_the_local_engine():
    with comm.mpi.connect() as world:
        agrees(world, DTYPES)


def sharded():
    """A step that is sharded by element, on a mesh, has the bits that it has on the local engine."""
    from refopt.program import bind, passes, step_program  # which take time to import

    def steps(world):
        mesh = Mesh(world, {"dp": world.size // 2, "shard": 2})
        program = step_program([("a", (40, 64)), ("b", (7,))], "adam", lr=0.5, world_size=world.size)
        over = passes.over_axes(program, {"shard": 2, "dp": world.size // 2}).program
        mine = passes.shard_elements(over, mesh.coordinates["shard"], 2, axis="shard").program
        arrays = {"a": np.ones((40, 64), np.float32), "b": np.ones(7, np.float32)}
        rng = np.random.default_rng(world.rank)
        grads = {f"{name}@GRAD": rng.normal(size=x.shape).astype(np.float32) for name, x in arrays.items()}
        bound = bind(mine, arrays, comm=mesh, gradients=grads)
        bound.startup()
        bound.step()
        return [bound.read(name).tobytes() for name in arrays]

    with comm.mpi.connect() as world:
        if world.size % 2 == 0:
            assert steps(world) == local.run(steps, world.size)[world.rank]


def unwatched():
    with comm.mpi.connect(watch=False) as world:
        assert_equal_bits(everything(world, dtypes=("float32", "bfloat16")))
        assert_equal_bits(groups(world))
        world.agree(["all_reduce"])
        assert world.gather_bytes(b"a" * world.rank) == [b"a" * rank for rank in range(world.size)]


def native():
    with comm.mpi.connect(algorithm="native") as world:
        for what, got, expected in everything(world, dtypes=("float32", "float64", "int32", "uint8", "int64")):
            if got.dtype.kind == "f":
                np.testing.assert_allclose(got, expected, rtol=0, atol=1e-4, err_msg=what)
            else:
                assert got.tobytes() == expected.tobytes(), what
        x = np.zeros(3, np.float16)
        with pytest.raises(TypeError, match="all_reduce: array: expected no 16-bit float"):
            world.all_reduce(x)
        world.broadcast(x, 0)


def agreement():
    with comm.mpi.connect() as world:
        world.agree(["all_reduce of 4 float32"] * 5)
        if world.size > 1:
            with pytest.raises(CommError, match=rf"call 7: .*rank {world.size - 1} has broadcast"):
                world.agree(["barrier"] * 7 + ["broadcast" if world.rank == world.size - 1 else "all_reduce"])
            with pytest.raises(CommError, match=r"agree: lr: rank 0 has 0\.5, rank 1 has 0\.25"):
                world.agree(["barrier"], {"lr": [0.5, 0.25][world.rank]} if world.rank < 2 else {})
        world.barrier()


def skipped():
    """The last rank leaves a call out, and comes to another."""
    world = comm.mpi.connect(timeout=20)
    x = np.ones(12, np.float32)
    world.all_reduce(x)
    if world.rank != world.size - 1:
        world.all_reduce(x)
    world.broadcast(x, 0)


def absent():
    """The last rank never comes."""
    comm.mpi._GRACE = 0.8
    world = comm.mpi.connect(timeout=0.5)
    world.barrier()
    if world.rank == world.size - 1:
        time.sleep(30)
    world.all_reduce(np.ones(12, np.float32))


def absent_unwatched():
    world = comm.mpi.connect(timeout=0.5, watch=False)
    if world.rank == world.size - 1:
        time.sleep(30)
    world.all_reduce(np.ones(12, np.float32))


def ended():
    """The last rank is at its end while the others wait."""
    world = comm.mpi.connect(timeout=20)
    if world.rank != world.size - 1:
        world.barrier()


def raised():
    comm.mpi._LATE = 0.2
    world = comm.mpi.connect(timeout=20)
    if world.rank == world.size - 1:
        raise ValueError("no gradient")
    world.recv(np.zeros(4, np.float32), world.size - 1)


def no_gradient(*_):
    raise ValueError("no gradient")


def trains(optimizer, apply, fail):
    """The last rank fails in a step, before a collective that the others wait in."""
    from refopt.program import bind, passes, step_program

    comm.mpi._LATE = 0.2
    world, ones = comm.mpi.connect(timeout=20), np.ones((40, 64), np.float32)
    program = apply(passes, step_program([("a", (40, 64))], optimizer, lr=0.5, world_size=world.size), world).program
    bound = bind(program, {"a": ones.copy()}, comm=world, gradients={"a@GRAD": ones})
    if world.rank == world.size - 1:
        fail(bound)
    bound.startup()
    for _ in range(2):
        bound.step()


def raised_in_norms():
    trains("lamb", lambda passes, program, world: passes.shard_elements(program, world.rank, world.size),
           lambda bound: setattr(bound.backend, "tiles", lambda *_: no_gradient))


def raised_in_local_steps():
    trains("adam", lambda passes, program, _: passes.local_steps(program, 2),
           lambda bound: setattr(bound, "gradients", no_gradient))


def short():
    world = comm.mpi.connect(timeout=20)
    if world.rank == 0:
        world.send(np.zeros(3, np.float32), 1)
    elif world.rank == 1:
        world.recv(np.zeros(4, np.float32), 0)
    world.barrier()


if __name__ == "__main__":
    for name in sys.argv[1:]:
        globals()[name]()
