"""The launches of the products of Muon's iterations: three for each iteration, for all matrices.

In 16 bits, `refopt.gpu.warpgroup_products` multiplies large matrices on Hopper, which has warpgroups, and
`refopt.gpu.products` all others. The bits are the same. In fp32 and fp64, `refopt.gpu.plain_products` multiplies all.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from refopt.gpu import matmul, plain_products, products, warpgroup_products
from refopt.gpu.muon.matrices import Workspace, uploaded
from refopt.gpu.runtime import Device
from refopt.gpu.tensor_core import MMA


def launches(machine: Device, work: Workspace, triples: np.ndarray, compute: str) -> Iterator[Callable[[Any], None]]:
    """The launches of one iteration for each row of ``triples``: a, b and c, in the type of the sums."""
    made: dict[tuple[int, int], tuple] = {}
    one = triples.dtype.type(1)
    for n, (a, b, c) in enumerate(triples):
        for which, numbers in enumerate(((one, one), (c, b), (one, a))):
            key = which, n % 2 if which != 1 else 0  # x alternates between two places
            if key not in made:
                made[key] = _launch(machine, work, n, which, compute)
            kernel, grid, threads, tables, mode = made[key]
            given = numbers if compute in MMA else (uploaded(machine, numbers, triples.dtype),)
            yield machine.prepare(kernel, grid, threads, (*tables, *given), mode)


def are_large(rows: Sequence[products.Product]) -> bool:
    """Whether most elements of these products are in products that fill the tiles of warpgroups."""
    sizes = np.array([(x.m * x.n, min(x.m, x.n)) for x in rows]).reshape(-1, 2)
    return 2 * sizes[sizes[:, 1] > warpgroup_products.HEIGHT, 0].sum() > sizes[:, 0].sum()


def _launch(machine: Device, work: Workspace, n: int, which: int, compute: str) -> tuple:
    """Kernel, blocks, threads, tables and mode of one of the three products of iteration n."""
    rows, kind = work.products(n)[which], (which == 0, which < 2, which > 0)  # square, symmetric, adds
    height, width, most = matmul.TILE, matmul.TILE, None
    if compute not in MMA:
        kernel, threads, mode = plain_products.merged(compute, *kind), plain_products.THREADS, "whole"
    elif work.mapped and are_large(rows):
        height, width = warpgroup_products.HEIGHT, warpgroup_products.layout_of(kind[1]).width
        rows = work.products(n, mapped=True)[which]
        kernel, threads, mode = warpgroup_products.merged(compute, *kind), warpgroup_products.THREADS, ""
        most = machine.properties.multiprocessors
    else:
        kernel, threads, mode = products.merged(compute, *kind), matmul.THREADS, "whole"
    tiles = products.tiles(rows, kind[1], height, width)
    grid = len(tiles[:most])
    return kernel, grid, threads, (uploaded(machine, tiles), uploaded(machine, rows)), mode
