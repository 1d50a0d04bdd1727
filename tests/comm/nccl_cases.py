"""What tests/comm/test_comm_nccl.py launches on GPUs: ``python -m refopt.comm.launch -n 2 nccl_cases.py CASE``."""

import os
import sys
import time

import numpy as np
from comm_cases import agrees, assert_equal_bits, everything, values
from numba import cuda

from refopt import comm, gpu
from refopt.comm import CommError

_kept = []  # what is enqueued must stay


class OnDevice:
    """A NumPy array in device memory, of any dtype, and views of it."""

    def __init__(self, host, memory=None, start=0):
        self.host, self.start = host, start
        _kept.append(self)
        self.shape, self.dtype = host.shape, host.dtype
        self.memory = cuda.to_device(host.reshape(-1).view(np.uint8)) if memory is None and host.size else memory
        address = self.memory.__cuda_array_interface__["data"][0] + start if host.size else 0
        self.__cuda_array_interface__ = {"shape": host.shape, "typestr": host.dtype.str, "strides": None,
                                         "data": (address, False), "version": 3}

    def __getitem__(self, part):
        return OnDevice(self.host[part], self.memory, self.start + part.start * self.host.itemsize)

    def read(self):
        if not self.host.size:
            return self.host
        image = self.memory.copy_to_host()[self.start : self.start + self.host.nbytes]
        return image.view(self.host.dtype).reshape(self.host.shape)


def reading(world):
    def read(array):
        world.synchronize()
        return array.read()

    return read


def agrees_with_numpy_and_the_local_engine():
    """Two ranks have one order of addition."""
    with comm.nccl.connect() as world:
        assert world.size == 2
        agrees(world, place=OnDevice, read=reading(world))


def blocking_and_a_stream():
    stream = cuda.stream()
    with comm.nccl.connect(stream=stream, blocking=True) as world:
        assert world.stream == int(getattr(stream.handle, "value", stream.handle))
        assert_equal_bits(everything(world, ("float32", "bfloat16"), place=OnDevice, read=reading(world)))
        world.agree(["all_reduce"])
        assert world.gather_bytes(b"a" * world.rank) == [b"a" * rank for rank in range(world.size)]
        try:
            world.agree([f"call of {world.rank}"])
        except CommError as error:
            assert str(error) == "agree: call 0: rank 0 has call of 0, rank 1 has call of 1", error
        else:
            raise AssertionError("the ranks agreed")


def many_at_once():
    """Arrays of Numba in a batch, some hundred megabytes, and that a large sum has the right bits."""
    with comm.nccl.connect() as world:
        counts = [1, 1000, 4097, 2_000_003, 25_000_000]
        arrays = [gpu.to_device(values(world.rank, "float32", count)) for count in counts]
        with world.batch():
            for array in arrays:
                world.all_reduce(array)
        world.synchronize()
        for array, count in zip(arrays, counts, strict=True):
            expected = values(0, "float32", count) + values(1, "float32", count)
            assert array.copy_to_host().tobytes() == expected.tobytes(), count
        assert world.counts["all_reduce"] == (5, 4 * sum(counts))


def torch_tensors():
    import torch

    with comm.nccl.connect(stream=torch.cuda.current_stream()) as world:
        for dtype in (torch.float32, torch.bfloat16, torch.float16, torch.int64):
            x = torch.arange(1000, device="cuda").to(dtype) + world.rank
            world.all_reduce(x)
            world.synchronize()
            expected = torch.arange(1000, device="cuda").to(dtype)
            assert torch.equal(x, expected + (expected + 1)), dtype


def skipped():
    """Rank 1 leaves a call out and waits in a later one: both report."""
    world = comm.nccl.connect(timeout=5)
    x = OnDevice(np.ones(1 << 20, np.float32))
    world.all_reduce(x)
    world.synchronize()
    if world.rank == 0:
        world.all_reduce(x)
    world.broadcast(x, 0)
    world.barrier()


def skipped_at_first():
    """The same, before anything is connected."""
    world = comm.nccl.connect(timeout=5)
    if world.rank == 0:
        world.all_reduce(OnDevice(np.ones(1 << 20, np.float32)))
    world.barrier()


def absent():
    """Rank 1 is busy with something else, and rank 0 gives up."""
    world = comm.nccl.connect(timeout=3)
    world.barrier()
    if world.rank == 1:
        time.sleep(120)
    world.all_reduce(OnDevice(np.ones(1 << 20, np.float32)))
    world.synchronize()


def never_connects():
    if os.environ["RANK"] == "0":
        comm.nccl.connect(timeout=2)


if __name__ == "__main__":
    globals()[sys.argv[1]]()
