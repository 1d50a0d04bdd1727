"""Ranks in a grid: a communicator along each of its axes."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from types import MappingProxyType

import numpy as np

from refopt.checks.arguments import names, shown, whole
from refopt.comm.interface import Communicator


class Mesh:
    """Ranks in a grid with named axes, the last of which counts fastest: rank 5 of ``{"dp": 2, "shard": 4}`` is (1, 1).

    All ranks make it with the same arguments, since all take part in making the groups.

    Attributes:
        axes: by name, the communicator of the ranks that differ from this one only along that axis, in its order.
        data: the communicator of the ranks that train the same parameters: those that differ along no model axis.
        coordinates: by name, this rank's coordinate.

    Args:
        world: the communicator of all ranks.
        axes: the sizes by name; their product is the number of ranks.
        model: names of the axes along which ranks have different parameters, such as those of tensor or pipeline
            parallelism.

    Raises:
        ValueError, TypeError: the message names the axis.
        refopt.comm.CommError: if ranks have different axes, or in a different order.

        >>> from refopt.comm import Mesh, local
        >>> local.run(lambda world: Mesh(world, {"dp": 2, "shard": 2}).axes["shard"].members, 4)
        [(0, 1), (0, 1), (2, 3), (2, 3)]
    """

    def __init__(self, world: Communicator, axes: Mapping[str, int], model: Iterable[str] = ()) -> None:
        if not isinstance(world, Communicator):
            raise TypeError(f"Mesh: world: expected a communicator of refopt.comm, got {shown(world)}")
        if not isinstance(axes, Mapping) or not axes:
            raise TypeError(f"Mesh: axes: expected sizes by name, got {shown(axes)}")
        order = names("Mesh: axes", list(axes))
        sizes = {axis: whole(f"Mesh: axes: {axis!r}", axes[axis], 1) for axis in order}
        if math.prod(sizes.values()) != world.size:
            got = f"{' * '.join(map(str, sizes.values()))} = {math.prod(sizes.values())}"
            raise ValueError(f"Mesh: axes: expected sizes whose product is {world.size}, got {got}")
        for k, axis in enumerate(apart := names("Mesh: model", model)):
            if axis not in sizes:
                raise ValueError(f"Mesh: model[{k}]: expected one of {', '.join(sizes)}, got {axis!r}")
        world.agree([f"axes {', '.join(f'{axis}: {size}' for axis, size in sizes.items())}", f"model axes {apart}"])
        grid = np.arange(world.size).reshape(tuple(sizes.values()))
        place = np.argwhere(grid == world.rank)[0]
        self.coordinates = MappingProxyType({axis: int(k) for axis, k in zip(order, place, strict=True)})
        self.axes = MappingProxyType({axis: _group(world, grid, [k]) for k, axis in enumerate(order)})
        self.data = _group(world, grid, [k for k, axis in enumerate(order) if axis not in apart])


def communicators(comm: Mesh | Communicator | None) -> tuple[Communicator | None, Mapping[str, Communicator]]:
    """The communicator of the ranks that train the same parameters, and those along axes, of which there may be none.
    """
    return (comm.data, comm.axes) if isinstance(comm, Mesh) else (comm, {})


def _group(world: Communicator, grid: np.ndarray, along: list[int]) -> Communicator:
    """The communicator of the ranks that differ from this one only along some axes; all such groups are made."""
    rest = [k for k in range(grid.ndim) if k not in along]
    rows = grid.transpose([*rest, *along]).reshape(-1, math.prod(grid.shape[k] for k in along))
    mine = [group for row in rows if (group := world.group([int(rank) for rank in row])) is not None]
    return mine[0]
