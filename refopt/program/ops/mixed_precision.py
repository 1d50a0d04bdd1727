"""The ops of a step in mixed precision: sums of micro-steps, the check of gradients, the loss scale.

Where tensors are cut at multiples of a tile, ranks add up the sums of tiles, and ``join_tiles`` joins them (N6).
``check_gradients`` and ``finish_check`` together are `refopt.cpu.check_gradients`: sums of tensors, then their tree sum
in the order of ``positions`` (numerics, N7). Between the two, ranks that checked different tensors can add up their
``sums`` and ``odd``: where all ranks but one have +0 the sum is exact, so the norm is that of one rank with all.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from refopt import checks
from refopt.checks.arguments import collected, is_whole, number, whole
from refopt.checks.dtypes import SIZES
from refopt.cpu import loss_scale
from refopt.cpu.gradient_check import factor_of
from refopt.cpu.reduce import TILE, sum_of_squares, tile_sums, tree_sum
from refopt.program.graph import Graph
from refopt.program.model import Op
from refopt.program.ops.checks import Describer, check_alike, check_widens, one
from refopt.program.ops.context import Context
from refopt.program.ops.registry import op

SCALING = "incr_every_n_steps", "decr_every_n_nan_or_inf", "incr_ratio", "decr_ratio"
GPU = "refopt.program.gpu.mixed_precision"


def _check_sum(graph: Graph, op: Op) -> None:
    check_alike(graph, op, "x", "out", dtype=False)
    if op.inputs["out"] != op.outputs["out"]:
        raise ValueError("out: expected the same variables in inputs and outputs, since they are added to")
    for k, (x, y) in enumerate(zip(op.inputs["x"], op.outputs["out"], strict=True)):
        if graph.vars[x].dtype != graph.vars[y].dtype or graph.vars[x].dtype not in SIZES:
            check_widens(f"out[{k}]", graph.vars[x].dtype, graph.vars[y].dtype)


@op("sum", "x out", "out", check=_check_sum, gpu=f"{GPU}:sum_")
def sum_(context: Context, op: Op) -> Callable[[], Any]:
    """Each of `x` is added to its counterpart in `out`, in fp32 or fp64, and rounded to the dtype of `out`, once."""
    pairs = [(context.arrays[x], context.arrays[y]) for x, y in zip(op.inputs["x"], op.outputs["out"], strict=True)]

    def run() -> None:
        with np.errstate(all="ignore"):
            for x, y in pairs:
                y += x.astype(y.dtype, copy=False)

    return run


def _check_gradient_check(graph: Graph, op: Op) -> None:
    (places,) = one(graph, op.outputs["sums"], "sums", "float32")
    if one(graph, op.outputs["odd"], "odd", "int32") != (1,):
        raise ValueError("odd: expected one element, got more")
    positions = op.attrs.get("positions")
    if not isinstance(positions, tuple) or len(positions) != len(op.inputs["x"]):
        raise ValueError(f"positions: expected a place for each of {len(op.inputs['x'])} gradients, got {positions!r}")
    pieces = whole("pieces", op.attrs.get("pieces", 0), 0, len(positions))
    if (pieces > 0) > ("tiles" in op.outputs):
        raise TypeError("tiles: expected a variable, since some of x are pieces, got none")
    (tiles,) = one(graph, op.outputs["tiles"], "tiles", "float32") if "tiles" in op.outputs else (0,)
    seen: set[tuple[bool, int]] = set()
    for k, place in enumerate(positions):
        cut = k >= len(positions) - pieces
        count = tiles_of(graph.vars[op.inputs["x"][k]].shape) if cut else 1
        room = tiles if cut else places
        if not is_whole(place) or not 0 <= place <= room - count or (cut, place) in seen:
            raise ValueError(f"positions[{k}]: expected a place from 0 to {room - count}, each once, got {place!r}")
        seen |= {(cut, place + j) for j in range(count)}
    for k, name in enumerate(op.inputs["x"]):
        if SIZES.get(graph.vars[name].dtype, 9) > 4:
            raise TypeError(f"x[{k}]: expected a dtype that widens to float32, got {graph.vars[name].dtype}")


def tiles_of(shape: tuple[int, ...]) -> int:
    """How many tiles there are in a tensor, or in a piece of one that begins at a tile (numerics, N6)."""
    return -(-math.prod(shape) // TILE)


@op("check_gradients", "x", "sums odd tiles?", check=_check_gradient_check, gpu=f"{GPU}:check_gradients")
def check_gradients(context: Context, op: Op) -> Callable[[], Any]:
    """`sums` receives the sum of squares of each of `x` at its index in `positions`, and +0 elsewhere.

    `odd` is 1 if any element of `x` is inf or NaN, else 0. `x` may be empty. The last `pieces` of `x` are pieces of
    tensors: `tiles` receives the sums of their tiles, consecutively from their index in `positions`; +0 elsewhere.
    """
    grads = [context.arrays[name] for name in op.inputs["x"]]
    positions = list(op.attrs["positions"])
    sums, odd = (context.arrays[op.outputs[slot][0]] for slot in ("sums", "odd"))
    tiles = context.arrays[op.outputs["tiles"][0]] if "tiles" in op.outputs else sums[:0]
    wholes = len(grads) - op.attrs.get("pieces", 0)
    checks.check_gradient_list(grads, None, math.inf, 0.0, checks.host_array)
    grads = list(map(checks.flat, grads))

    def run() -> None:
        sums[...], odd[...], tiles[...] = 0, 0, 0
        with np.errstate(all="ignore"):
            for k, (place, g) in enumerate(zip(positions, grads, strict=True)):
                values = g.astype(sums.dtype)
                if k < wholes:
                    sums[place] = sum_of_squares(values)
                else:
                    tiles[place : place + tiles_of(g.shape)] = tile_sums(values * values)
        odd[0] = any(not np.isfinite(g).all() for g in grads)

    return run


def _check_join(graph: Graph, op: Op) -> None:
    if op.inputs.get("sums", op.outputs["sums"]) != op.outputs["sums"]:
        raise ValueError("sums: expected the same variable in inputs and outputs, since some of it stays")
    real = next((graph.vars[x].dtype for x in op.inputs["tiles"] if graph.vars[x].dtype == "float64"), "float32")
    (tiles,), (sums,) = (one(graph, names[slot], slot, real)
                         for slot, names in (("tiles", op.inputs), ("sums", op.outputs)))
    counts, positions = (op.attrs.get(key) for key in ("counts", "positions"))
    for key, values in (("counts", counts), ("positions", positions)):
        for k, value in enumerate(collected(key, values, "integers")):
            whole(f"{key}[{k}]", value, int(key == "counts"), tiles if key == "counts" else sums - 1)
    if len(counts) != len(positions) or sum(counts) != tiles:  # type: ignore[arg-type]
        got = f"{len(counts)} that add up to {sum(counts)}"  # type: ignore[arg-type]
        raise ValueError(f"counts: expected {len(positions)} that add up to {tiles}, got {got}")  # type: ignore[arg-type]
    if "sums" not in op.inputs and {*positions} != {*range(sums)}:  # type: ignore[misc]
        raise ValueError(f"positions: expected all from 0 to {sums - 1}, as sums is no input, got {positions!r}")


@op("join_tiles", "tiles sums?", "sums", check=_check_join, gpu=f"{GPU}:join_tiles")
def join_tiles(context: Context, op: Op) -> Callable[[], Any]:
    """Puts each tensor's sum, joined from its `counts` sums in `tiles`, at its index of `positions` in `sums`.

    What is at other indices stays if `sums` is also an input; else there must be none.
    """
    tiles, sums = context.arrays[op.inputs["tiles"][0]], context.arrays[op.outputs["sums"][0]]
    stops = np.cumsum(op.attrs["counts"])
    rows = [tiles[stop - count : stop] for stop, count in zip(stops, op.attrs["counts"], strict=True)]

    def run() -> None:
        with np.errstate(all="ignore"):
            for place, row in zip(op.attrs["positions"], rows, strict=True):
                sums[place] = tree_sum(row)

    return run


def _check_finish(graph: Graph, op: Op) -> None:
    clips = "sums" in op.inputs
    if clips != ("grad_norm" in op.outputs):
        raise TypeError(f"grad_norm: expected {'a variable' if clips else 'none without sums'}, got another number")
    for slot, names in {**op.inputs, **op.outputs}.items():
        shape = one(graph, names, slot, "int32" if slot == "odd" else "float32")
        if slot != "sums" and shape != (1,):
            raise ValueError(f"{slot}: expected one element, got shape {shape}")
    if clips:
        number("max_norm", op.attrs.get("max_norm"), 0)
        number("epsilon", op.attrs.get("epsilon"), 0, real=np.float32)


@op(
    "finish_check", "odd loss_scale sums?", "grad_factor found_inf grad_norm?", check=_check_finish,
    gpu=f"{GPU}:finish_check",
)
def finish_check(context: Context, op: Op) -> Callable[[], Any]:
    """`found_inf` is 1 if `odd` is not 0, else 0; `grad_factor` follows from `loss_scale` and, with `sums`, the clip.
    """
    inputs = {slot: context.arrays[names[0]] for slot, names in op.inputs.items()}
    outputs = {slot: context.arrays[names[0]] for slot, names in op.outputs.items()}
    max_norm, epsilon = op.attrs.get("max_norm", math.inf), op.attrs.get("epsilon", 0.0)

    def run() -> None:
        real = np.float32
        with np.errstate(all="ignore"):
            inverse = real(1) / inputs["loss_scale"][0]
            outputs["found_inf"][0] = inputs["odd"][0] != 0
            outputs["grad_factor"][0] = inverse
            if "sums" in inputs:
                norm = np.sqrt(tree_sum(inputs["sums"])) * inverse
                outputs["grad_norm"][0] = norm
                outputs["grad_factor"][0] = factor_of(norm, inverse, max_norm=real(max_norm), epsilon=real(epsilon))

    return run


STATE = "found_inf", "loss_scale", "good_steps", "bad_steps"


def _check_scaling(graph: Graph, op: Op) -> None:
    arrays = [graph.vars[op.inputs[slot][0]] for slot in STATE]
    checks.check_loss_scaling(arrays, Describer(), **{name: op.attrs.get(name) for name in SCALING})


@op(
    "update_loss_scaling", " ".join(STATE), " ".join(STATE[1:]), check=_check_scaling,
    gpu=f"{GPU}:update_loss_scaling",
)
def update_loss_scaling(context: Context, op: Op) -> Callable[[], Any]:
    """Runs the routine, which changes `loss_scale`, `good_steps`, `bad_steps`."""
    arrays = [context.arrays[op.inputs[slot][0]] for slot in STATE]
    numbers = {name: op.attrs[name] for name in SCALING}
    checked = checks.check_loss_scaling(arrays, checks.host_array, **numbers)
    return lambda: loss_scale.run(arrays, checked)
