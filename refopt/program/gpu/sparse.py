"""The kernel that adds up the rows of a sparse gradient: ``scatter_add`` on a device."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from refopt.checks import Array
from refopt.checks.dtypes import ITEM_SIZES
from refopt.gpu import words
from refopt.gpu.kernels import Kernel, factory, kernel
from refopt.gpu.runtime import Device
from refopt.gpu.target import cuda
from refopt.gpu.vectors import load_of, store_of
from refopt.program.model import Op
from refopt.program.ops.context import Context, Rows

BLOCK = 128


@factory
def adder(source: str, target: str) -> Kernel:
    """The kernel for the dtypes of rows and sum. Each thread has its own column, so no two write one element."""
    load, load_sum = load_of(source), load_of(target)
    store, load_number = store_of(target), words.load8
    real: Any = np.dtype(target).type
    item, sum_item = ITEM_SIZES[source], ITEM_SIZES[target]

    @kernel()
    def scatter_add(numbers, rows, columns, values, sums):
        for column in range(cuda.grid(1), columns, cuda.gridsize(1)):
            for k in range(rows):
                at = sums + sum_item * (load_number(numbers + 8 * k) * columns + column)
                store(at, load_sum(at) + real(load(values + item * (k * columns + column))))

    return scatter_add


def scatter_add(context: Context, op: Op) -> Callable[[], None]:
    """A function that runs the op."""
    backend: Any = context.backend
    pairs = list(zip(op.inputs["x"], op.outputs["out"], strict=True))

    def run() -> None:
        for source, target in pairs:
            rows, dense = context.rows[source], context.arrays[target]
            add_rows(backend.machine, backend.describe, rows, dense, backend.stream)

    return run


def add_rows(
    machine: Device, describe: Callable[[Any, str], Array], rows: Rows, dense: Any, stream: Any
) -> None:
    """Overwrite a device array with the sum of rows, in stream order."""
    sums = describe(dense, "scatter_add")
    if not sums.size:
        return
    size = sums.size * ITEM_SIZES[sums.dtype]
    machine.prepare(words.fill, -(-size // words.FILL), words.BOUNDS[0], (sums.address, size, 0))(stream)
    columns = sums.size // sums.shape[0]
    numbers, values = (describe(x, "scatter_add") for x in rows)
    if values.size:
        args = numbers.address, numbers.size, columns, values.address, sums.address
        machine.prepare(adder(values.dtype, sums.dtype), -(-columns // BLOCK), BLOCK, args)(stream)
