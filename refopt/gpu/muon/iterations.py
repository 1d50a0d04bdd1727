"""The launches of the products of Muon's iterations: three for each iteration, of all matrices.

Large matrices are multiplied by `refopt.gpu.warpgroup_products` where there are warpgroups, on Hopper, and else by
`refopt.gpu.products`. The bits are the same.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from refopt.gpu import matmul, products, warpgroup_products
from refopt.gpu.muon.matrices import Workspace, uploaded
from refopt.gpu.runtime import Device

ONE = np.float32(1)


def launches(machine: Device, work: Workspace, triples: np.ndarray, compute: str) -> Iterator[Callable[[Any], None]]:
    """Those of an iteration for each row of ``triples``: a, b and c."""
    made: dict[tuple[int, int], tuple] = {}
    for n, (a, b, c) in enumerate(triples):
        for which, numbers in enumerate(((ONE, ONE), (c, b), (ONE, a))):
            key = which, n % 2 if which != 1 else 0  # x is at two places by turns
            if key not in made:
                made[key] = _launch(machine, work, n, which, compute)
            kernel, grid, threads, tables, mode = made[key]
            yield machine.prepare(kernel, grid, threads, (*tables, *numbers), mode)


def are_large(rows: Sequence[products.Product]) -> bool:
    """Whether most elements of these products are in such as fill the tiles of warpgroups."""
    sizes = np.array([(x.m * x.n, min(x.m, x.n)) for x in rows]).reshape(-1, 2)
    return 2 * sizes[sizes[:, 1] > warpgroup_products.HEIGHT, 0].sum() > sizes[:, 0].sum()


def _launch(machine: Device, work: Workspace, n: int, which: int, compute: str) -> tuple:
    """Kernel, blocks, threads, tables and mode of one of the three products of iteration n."""
    rows, kind = work.products(n)[which], (which == 0, which < 2, which > 0)  # square, symmetric, adds
    if work.mapped and are_large(rows):
        height, width = warpgroup_products.HEIGHT, warpgroup_products.Layout(kind[1]).width
        rows = work.products(n, mapped=True)[which]
        kernel, threads, mode = warpgroup_products.merged(compute, *kind), warpgroup_products.THREADS, ""
        most = machine.properties.multiprocessors
    else:
        height = width = matmul.TILE
        kernel, threads, mode, most = products.merged(compute, *kind), matmul.THREADS, "whole", None
    tiles = products.tiles(rows, kind[1], height, width)
    grid = min(len(tiles), most or len(tiles))
    return kernel, grid, threads, (uploaded(machine, tiles), uploaded(machine, rows)), mode
