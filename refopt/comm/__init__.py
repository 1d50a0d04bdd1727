"""Collectives between ranks: one interface, three engines.

`refopt.comm.local` has the ranks in one process, deterministic, for tests and for reading; `refopt.comm.mpi` has
processes that meet through MPI, on NumPy arrays; `refopt.comm.nccl` has a process per GPU. `refopt.comm.calls` checks
their arguments, and `refopt.comm.mesh` arranges ranks along named axes. An engine is imported when it is first used, so
the packages of the others need not be installed.

    >>> import numpy as np
    >>> from refopt import comm
    >>> def rank(world):
    ...     x = np.full(3, world.rank + 1, np.float32)
    ...     world.all_reduce(x)
    ...     return x
    >>> comm.local.run(rank, 4)[2]
    array([10., 10., 10.], dtype=float32)
"""

import importlib
from typing import TYPE_CHECKING, Any

from refopt.comm.interface import CommError, Communicator, Counted
from refopt.comm.mesh import Mesh

if TYPE_CHECKING:
    import refopt.comm.local as local
    import refopt.comm.mpi as mpi
    import refopt.comm.nccl as nccl

__all__ = ["CommError", "Communicator", "Counted", "Mesh", "local", "mpi", "nccl"]


def __getattr__(name: str) -> Any:
    if name in ("local", "mpi", "nccl"):
        return importlib.import_module(f"refopt.comm.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
