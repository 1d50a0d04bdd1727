"""The launches of the products of Muon's iterations, for all matrices: the standard ones, and those by Gram matrices.

A launch has the products of one kind. An iteration by Gram matrices has some kinds in common with the standard one, in
the same order, so a launch serves both where it can::

    standard                Gram matrices             launch
    A  = x x^T              R  = x x^T, at a start    squares
    B  = b A + c (A A)      Z  = b R + c (R R)        symmetric, adding
                            Q  = a Q + Q Z
                            T  = a R + R Z            symmetric, adding
                            R  = a T + Z T            symmetric, adding
                            Q  = Z + a I, at a start  of diagonals, in Z's memory
    x  = a x + B x                                    adding
                            x  = Q x, at an end       neither

In 16 bits, `refopt.gpu.warpgroup_products` multiplies large matrices on Hopper, which has warpgroups, and
`refopt.gpu.products` all others. The bits are the same. In fp32 and fp64, `refopt.gpu.plain_products` multiplies all.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from refopt.checks.dtypes import arithmetic
from refopt.gpu import matmul, plain_products, products, warpgroup_products
from refopt.gpu.muon.elements import diagonal_kernel
from refopt.gpu.muon.matrices import XS, Operation, Workspace, uploaded
from refopt.gpu.norms import UPDATE_BOUNDS
from refopt.gpu.runtime import Device
from refopt.gpu.tensor_core import MMA


class Stage(NamedTuple):
    """Operations of one kind and their alpha and beta; or, without operations, ``diagonal`` plus alpha times I."""

    alpha: Any
    beta: Any
    operations: tuple[Operation, ...] = ()
    diagonal: str = ""


def stages(triples: np.ndarray, restarts: tuple[int, ...] | None) -> tuple[list[Stage], dict[bool, str]]:
    """All stages of the iterations with a, b and c, and where x is after them, with Gram matrices and without."""
    made, one, count = [], triples.dtype.type(1), len(triples)
    starts, turns = {0, *(restarts or ())}, ("P", "Q", "S")
    q = 0  # the turn of Q
    x, moved = XS  # of Gram matrices
    for n, (a, b, c) in enumerate(triples):
        start, end, old, new = n in starts, n + 1 == count or n + 1 in starts, XS[n % 2], XS[(n + 1) % 2]
        product, z = turns[q], turns[0 if start else (q + 1) % 3]
        q = 0 if start else (q + 2) % 3
        square = Operation(True, x, x, "A")
        made.append(Stage(one, one, (Operation(False, old, old, "A"), *[square] * start)))
        made.append(Stage(c, b, (Operation(False, "A", "A", "P", "A"), Operation(True, "A", "A", z, "A"))))
        multiplied = [] if start else [Operation(True, product, z, turns[q], product)]
        multiplied += [] if end else [Operation(True, "A", z, "T", "A")]
        made.append(Stage(one, a, tuple(multiplied)))
        made.append(Stage(one, a, () if end else (Operation(True, z, "T", "A", "T"),)))
        made += [Stage(a, one, diagonal=z)] * start
        made.append(Stage(one, a, (Operation(False, "P", old, new, old),)))
        if end:
            made.append(Stage(one, one, (Operation(True, turns[q], x, moved),)))
            x, moved = moved, x
    return made, {False: XS[count % 2], True: x}


def launches(
    machine: Device, work: Workspace, every: Sequence[Stage], compute: str
) -> Iterator[Callable[[Any], None]]:
    """The launches of stages that have matrices."""
    made: dict[tuple[Operation, ...], tuple] = {}
    real = arithmetic(compute)
    for alpha, beta, operations, diagonal in every:
        if diagonal:
            places = [(work.places[diagonal, i], m.small) for i, m in enumerate(work.matrices) if work.gram[i]]
            if places:
                args = uploaded(machine, places), uploaded(machine, [alpha], real)
                yield machine.prepare(diagonal_kernel(compute), len(places), UPDATE_BOUNDS[0], args, "whole")
        elif any(operation.gram in work.gram for operation in operations):
            if operations not in made:
                made[operations] = _launch(machine, work, operations, compute)
            kernel, grid, threads, tables, mode = made[operations]
            given = (alpha, beta) if compute in MMA else (uploaded(machine, (alpha, beta), real),)
            yield machine.prepare(kernel, grid, threads, (*tables, *given), mode)


def are_large(rows: Sequence[products.Product]) -> bool:
    """Whether most elements of these products are in products that fill the tiles of warpgroups."""
    sizes = np.array([(x.m * x.n, min(x.m, x.n)) for x in rows]).reshape(-1, 2)
    return 2 * sizes[sizes[:, 1] > warpgroup_products.HEIGHT, 0].sum() > sizes[:, 0].sum()


def _launch(machine: Device, work: Workspace, operations: tuple[Operation, ...], compute: str) -> tuple:
    """Kernel, blocks, threads, tables and mode of the products of operations of one kind."""
    rows, kind = work.products(operations), operations[0].kind
    height, width, most = matmul.TILE, matmul.TILE, None
    if compute not in MMA:
        kernel, threads, mode = plain_products.merged(compute, *kind), plain_products.THREADS, "whole"
    elif work.mapped and are_large(rows):
        height, width = warpgroup_products.HEIGHT, warpgroup_products.layout_of(kind[1]).width
        rows = work.products(operations, mapped=True)
        kernel, threads, mode = warpgroup_products.merged(compute, *kind), warpgroup_products.THREADS, ""
        most = machine.properties.multiprocessors
    else:
        kernel, threads, mode = products.merged(compute, *kind), matmul.THREADS, "whole"
    tiles = products.tiles(rows, kind[1], height, width)
    grid = len(tiles[:most])
    return kernel, grid, threads, (uploaded(machine, tiles), uploaded(machine, rows)), mode
