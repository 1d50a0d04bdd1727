"""Makes parameters equal on all ranks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from refopt.checks.arguments import mapped, shown
from refopt.comm import Communicator
from refopt.comm.calls import check_rank
from refopt.program.passes.place import broadcast_order


def broadcast_params(comm: Any, arrays: Mapping[str, Any], owners: Mapping[str, int] | None = None) -> None:
    """Overwrite parameters on every rank with those of the ranks that own them, and wait until all have them.

    Args:
        comm: a communicator; all ranks make the same call.
        arrays: by name.
        owners: by name, the rank with the right values; ``None`` for rank 0 and all arrays, as before the first step.

    Raises:
        ValueError, TypeError: naming a parameter that has no array, which Paddle skips, or whose owner is not a rank;
            nothing has been done then.

    Source: Paddle's ``ParallelExecutor::BCastParamsToDevices``. For a while it sent everything from device 0 (issue
    11728), and did not wait for the last broadcast.
    """
    if not isinstance(comm, Communicator):
        raise TypeError(f"broadcast_params: comm: expected a communicator of refopt.comm, got {shown(comm)}")
    arrays = mapped("broadcast_params: arrays", arrays)
    root_of = dict.fromkeys(arrays, 0) if owners is None else mapped("broadcast_params: owners", owners)
    roots = {}
    for name, root in root_of.items():
        if name not in arrays:
            raise ValueError(f"broadcast_params: owners: expected names of arrays, got {name!r}")
        roots[name] = check_rank(f"broadcast_params: owners[{name!r}]", root, comm.size)
    for name, root in broadcast_order(roots):
        comm.broadcast(arrays[name], root)
    comm.barrier()
