"""Times what a rank computes in a step of LAMB, LARS or NovoGrad that is sharded by element, on one GPU.

    python -m benchmarks.norm_shards [--out FILE]

``shares`` has milliseconds of the device: the update of all tensors on one rank, and the updates of the first of
several ranks with the sums of tiles that they need, without collectives; and the bytes that the all-reduce of these
sums would have.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np

from benchmarks.measure import device_ms, free
from benchmarks.record import by_parts
from refopt import gpu
from refopt.catalog import ROUTINES, workloads
from refopt.program import Program, ops, passes, step_program
from refopt.program.gpu.backend import Gpu

MODELS = "resnet50", "bert-large"
OF_STEP = "norm_tiles", "join_tiles"  # and the updates themselves
NUMBERS = {"lamb": {"lr": 1e-3}, "lars_momentum": {"lr": 0.1, "mu": 0.9}, "novograd": {"lr": 1e-3}}


def program_of(routine: str, tensors: Any, ranks: int) -> Program:
    """The program of the first of some ranks."""
    program = step_program(tensors, routine, world_size=ranks, **NUMBERS[routine])
    if ranks > 1:
        program = passes.shard_elements(program, 0, ranks).program
    return passes.fuse_optimizer(program, form="merged").program


def step_of(program: Program, routine: str, device: str = "gpu") -> Any:
    """What runs the program's updates, and the sums before them, on arrays filled with random numbers."""
    chosen = [op for op in program.main if op.type in (*OF_STEP, routine, f"merged_{routine}")]
    random, machine = np.random.default_rng(0), gpu.device(device)

    def filled(name: str) -> Any:
        var = program.vars[name]
        return machine.to_device(random.random(var.shape, var.dtype) * np.dtype(var.dtype).type(0.01))

    arrays = {name: filled(name) for name in {name for op in chosen for name in (*op.reads, *op.writes)}}
    context = ops.Context(program, arrays, Gpu(arrays.values(), 0), None, None)
    return ops.Runners([ops.bind(context, op) for op in chosen])


def shares() -> Iterator[dict[str, Any]]:
    for model in MODELS:
        tensors = workloads.load(model).tensors
        for routine in NUMBERS:
            whole = 0.0
            for ranks in (1, 2, 4):
                program = program_of(routine, tensors, ranks)
                ms = device_ms(step_of(program, routine).run)
                whole = whole or ms
                tiles = {name for op in program.main if op.type == "norm_tiles" for name in op.outputs["tiles"]}
                yield {"model": model, "routine": routine, "ranks": ranks, "ms": round(ms, 4),
                       "of_one_rank": round(ms / whole, 3),
                       "bytes_of_sums": sum(4 * program.vars[name].shape[0] for name in tiles)}
                free()


if __name__ == "__main__":
    assert NUMBERS.keys() == {name for name, routine in ROUTINES.items() if routine.norms}
    by_parts(__doc__, "norm_shards", {"shares": shares})
