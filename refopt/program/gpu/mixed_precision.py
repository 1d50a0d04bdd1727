"""`refopt.program.ops.mixed_precision` on a device: kernels of `refopt.gpu.gradient_check`, and one that adds."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from refopt import gpu
from refopt.checks import Array
from refopt.checks.dtypes import ITEM_SIZES, arithmetic
from refopt.cpu.reduce import TILE
from refopt.gpu import words
from refopt.gpu.gradient_check import BOUNDS, finisher, first_pass, tile_joins
from refopt.gpu.kernels import Kernel, factory, kernel
from refopt.gpu.target import cuda
from refopt.gpu.vectors import load_of, store_of
from refopt.program.model import Op
from refopt.program.ops.context import Context
from refopt.program.ops.mixed_precision import SCALING, STATE
from refopt.program.ops.runner import each

BLOCK = 128
REAL = np.float32


@factory
def adder(source: str, target: str) -> Kernel:
    """The kernel that adds an array to another, one element per thread."""
    load, load_sum = load_of(source), load_of(target)
    store = store_of(target)
    real: Any = arithmetic(target)
    item, sum_item = ITEM_SIZES[source], ITEM_SIZES[target]

    @kernel()
    def accumulate(x, size, sums):
        for i in range(cuda.grid(1), size, cuda.gridsize(1)):
            at = sums + sum_item * i
            store(at, load_sum(at) + real(load(x + item * i)))

    return accumulate


def sum_(context: Context, op: Op) -> Callable[[], None]:
    """Add tensors to others, in stream order."""
    backend: Any = context.backend
    machine, launches = backend.machine, []
    for pair in zip(op.inputs["x"], op.outputs["out"], strict=True):
        x, y = (backend.describe(context.arrays[name], "sum") for name in pair)
        if x.size:
            args = x.address, x.size, y.address
            launches.append(machine.prepare(adder(x.dtype, y.dtype), -(-x.size // BLOCK), BLOCK, args))
    return _bound(backend, launches)


def check_gradients(context: Context, op: Op) -> Callable[[], None]:
    """Sums of squares at their indices, +0 elsewhere, and whether all is finite: the first pass of a gradient check."""
    backend: Any = context.backend
    machine, positions = backend.machine, op.attrs["positions"]
    grads = [context.arrays[name] for name in op.inputs["x"]]
    sums, odd = (context.arrays[op.outputs[slot][0]] for slot in ("sums", "odd"))
    roots, ones = _roots(backend, sums.size), machine.to_device(np.zeros(1, np.int32))
    launches = [machine.prepare(words.fill, 1, words.BOUNDS[0], (backend.describe(ones, "odd").address, 4, 0))]
    arrays = [backend.describe(g, f"check_gradients: grads[{i}]") for i, g in enumerate(grads)]
    wholes = len(arrays) - op.attrs.get("pieces", 0)
    launches += first_pass(machine, dict(zip(positions[:wholes], arrays[:wholes], strict=True)), REAL, roots, ones)
    found, targets = [_row(backend, roots, sums.size), ones], [sums, odd]
    if "tiles" in op.outputs:
        tiles = context.arrays[op.outputs["tiles"][0]]
        leaves = _roots(backend, tiles.size)
        pieces = zip(positions[wholes:], arrays[wholes:], strict=True)
        each_tile = {place + j: tile for place, piece in pieces for j, tile in enumerate(_tiles(piece))}
        launches += first_pass(machine, each_tile, REAL, leaves, ones)
        found, targets = [*found, _row(backend, leaves, tiles.size)], [*targets, tiles]
    return each([_bound(backend, launches), backend.cast(found, targets)])


def _tiles(piece: Array) -> list[Array]:
    """The tiles of a piece, each of which the first pass treats as a tensor."""
    item = ITEM_SIZES[piece.dtype]
    return [
        Array(piece.address + item * k, (min(TILE, piece.size - k),), piece.dtype, (item,), piece.writable)
        for k in range(0, piece.size, TILE)
    ]


def join_tiles(context: Context, op: Op) -> Callable[[], None]:
    """Join the sums of the tiles of each tensor, in one launch."""
    backend: Any = context.backend
    machine, counts = backend.machine, op.attrs["counts"]
    tiles, sums = context.arrays[op.inputs["tiles"][0]], context.arrays[op.outputs["sums"][0]]
    real = np.dtype(context.program.vars[op.inputs["tiles"][0]].dtype).type
    roots, launch = tile_joins(machine, counts, op.attrs["positions"], real, sums)
    return each([backend.cast([tiles], [_row(backend, roots, tiles.size)]), _bound(backend, [launch])])


def finish_check(context: Context, op: Op) -> Callable[[], None]:
    """Factor, flag and norm from the sums and the odd flag: the last launch of a gradient check."""
    backend: Any = context.backend
    machine = backend.machine
    inputs = {slot: context.arrays[names[0]] for slot, names in op.inputs.items()}
    outputs = {slot: context.arrays[names[0]] for slot, names in op.outputs.items()}
    max_norm, epsilon = op.attrs.get("max_norm", math.inf), op.attrs.get("epsilon", 0.0)
    count = inputs["sums"].size if "sums" in inputs else 0
    roots, ones = _roots(backend, count), machine.to_device(np.zeros(1, np.int32))
    sources, targets = [inputs["odd"]], [ones]
    if count:
        sources.append(inputs["sums"])
        targets.append(_row(backend, roots, count))
    before = backend.cast(sources, targets)
    results = {slot: machine.to_device(np.zeros(1, REAL)) for slot in ("grad_factor", "found_inf", "grad_norm")}
    numbers = machine.to_device(np.array([max_norm, epsilon], REAL))
    scale_at = backend.describe(inputs["loss_scale"], "finish_check: loss_scale").address
    args = roots, count, ones, numbers, scale_at, *results.values()
    finish = _bound(backend, [machine.prepare(finisher(REAL), 1, BOUNDS[0], args)])
    return each([before, finish, backend.cast([results[slot] for slot in outputs], list(outputs.values()))])


def update_loss_scaling(context: Context, op: Op) -> Callable[[], Any]:
    """The routine of `refopt.gpu`."""
    arrays = [context.arrays[op.inputs[slot][0]] for slot in STATE]
    backend: Any = context.backend
    return gpu.loss_scaling(*arrays, **{name: op.attrs[name] for name in SCALING}, stream=backend.stream)


def _roots(backend: Any, count: int) -> Any:
    """Zeroed space for the sums of ``count`` tensors, and for those of their tree."""
    return backend.machine.to_device(np.zeros((2, 2 * count + 8), REAL))


def _row(backend: Any, roots: Any, count: int) -> Any:
    return backend.machine.view(roots.reshape(roots.size), 0, (count,), (roots.dtype.itemsize,))


def _bound(backend: Any, launches: list[Any]) -> Callable[[], None]:
    if not launches:
        return lambda: None
    run = backend.machine.sequence(launches)
    return lambda: run(backend.stream)
