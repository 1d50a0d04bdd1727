"""The ops of a step in mixed precision, beside those of `refopt.program.kinds`.

=======================  ===============================================================================================
``initialize``           ``out`` are brought by the caller, though they need not live from step to step; at startup
``delete``               ``x`` are let go, their memory with them; at startup
``forward``              reads ``params``; what it makes is no part of the program
``sum``                  each of ``x`` is added to its place in ``out``, once, in the dtype of ``out``
``check_gradients``       ``sums`` has the sum of squares of each of ``x`` at its place of ``positions``, +0 elsewhere;
                         ``odd`` is 1 if any element of ``x`` is inf or NaN, else 0. There may be no ``x``
``finish_check``          ``found_inf`` is 1 if ``odd`` is not 0, else 0; ``grad_factor`` from ``loss_scale`` and, with
                         ``sums``, the clip
``update_loss_scaling``  the routine; changes ``loss_scale``, ``good_steps``, ``bad_steps``
=======================  ===============================================================================================

``check_gradients`` and ``finish_check`` together are `refopt.cpu.check_gradients`: sums of tensors, and then their tree
in the order of ``positions`` (numerics, N7). Between the two, ranks that have checked other tensors can add up their
``sums`` and ``odd``: a sum of which all ranks but one have +0 is exact, so the norm is that of one rank with all.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from refopt import checks, cpu
from refopt.checks.arguments import is_whole, number
from refopt.checks.dtypes import SIZES
from refopt.cpu.gradient_check import factor_of
from refopt.cpu.reduce import sum_of_squares, tree_sum
from refopt.program import kinds
from refopt.program.backends import Gpu
from refopt.program.ops import Op

if TYPE_CHECKING:
    from refopt.program.bound import Bound
    from refopt.program.program import Program

SCALING = "incr_every_n_steps", "decr_every_n_nan_or_inf", "incr_ratio", "decr_ratio"


def _check_startup(program: Program, op: Op) -> None:
    slot = "out" if op.type == "initialize" else "x"
    names = (op.inputs if slot == "x" else op.outputs).get(slot, ())
    if not names:
        raise ValueError(f"{slot}: expected variables, got none")
    if op.role != "startup":
        raise ValueError(f"role: expected startup, got {op.role}")
    for k, name in enumerate(names):
        if program.vars[name].persistable:
            raise ValueError(f"{slot}[{k}]: expected a variable that is not persistable, got {name!r}")


def _check_forward(program: Program, op: Op) -> None:
    kinds._check_slots(op, ["params"], ["params"], [])
    if op.outputs:
        raise TypeError(f"outputs: expected none, got {', '.join(op.outputs)}")


def _check_sum(program: Program, op: Op) -> None:
    kinds._check_slots(op, ["x", "out"], ["x", "out"], ["out"])
    kinds._check_alike(program, op, "x", "out", dtype=False)
    kinds.check_dense(program, op)
    if op.inputs.get("out") != op.outputs["out"]:
        raise ValueError("out: expected the same variables in inputs and outputs, since they are added to")
    for k, (x, y) in enumerate(zip(op.inputs["x"], op.outputs["out"], strict=True)):
        source, target = program.vars[x].dtype, program.vars[y].dtype
        if target not in ("float32", "float64") or SIZES.get(source, 9) > SIZES[target]:
            raise TypeError(f"out[{k}]: expected float32 or float64 that {source} widens to, got {target}")


def _check_gradient_check(program: Program, op: Op) -> None:
    kinds._check_slots(op, ["x", "sums", "odd"], ["x"], ["sums", "odd"])
    kinds.check_dense(program, op)
    (places,) = _one(program, op.outputs["sums"], "sums", "float32")
    if _one(program, op.outputs["odd"], "odd", "int32") != (1,):
        raise ValueError("odd: expected one element, got more")
    positions = op.attrs.get("positions")
    if not isinstance(positions, tuple) or len(positions) != len(op.inputs["x"]):
        raise ValueError(f"positions: expected a place for each of {len(op.inputs['x'])} gradients, got {positions!r}")
    seen: set[int] = set()
    for k, place in enumerate(positions):
        if not is_whole(place) or not 0 <= place < places or place in seen:
            raise ValueError(f"positions[{k}]: expected a place from 0 to {places - 1}, each once, got {place!r}")
        seen.add(place)
    for k, name in enumerate(op.inputs["x"]):
        if SIZES.get(program.vars[name].dtype, 9) > 4:
            raise TypeError(f"x[{k}]: expected a dtype that widens to float32, got {program.vars[name].dtype}")


def _check_finish(program: Program, op: Op) -> None:
    clips = "sums" in op.inputs
    kinds._check_slots(
        op, ["odd", "loss_scale", "grad_factor", "found_inf", *(["grad_norm"] if clips else [])],
        ["odd", "loss_scale", "sums"], ["grad_factor", "found_inf", *(["grad_norm"] if clips else [])],
    )  # fmt: skip
    for slot, names in {**op.inputs, **op.outputs}.items():
        shape = _one(program, names, slot, "int32" if slot == "odd" else "float32")
        if slot != "sums" and shape != (1,):
            raise ValueError(f"{slot}: expected one element, got shape {shape}")
    for name in ("max_norm", "epsilon") if clips else ():
        number(name, op.attrs.get(name), 0)


def _check_scaling(program: Program, op: Op) -> None:
    kinds._check_slots(
        op, ["found_inf", "loss_scale", "good_steps", "bad_steps"],
        ["found_inf", "loss_scale", "good_steps", "bad_steps"], ["loss_scale", "good_steps", "bad_steps"],
    )  # fmt: skip
    describe = kinds._Describer()
    arrays = [program.vars[op.inputs[slot][0]] for slot in ("found_inf", "loss_scale", "good_steps", "bad_steps")]
    checks.check_loss_scaling(arrays, describe, **{name: op.attrs.get(name) for name in SCALING})


def _one(program: Program, names: tuple[str, ...], slot: str, dtype: str) -> tuple[int, ...]:
    """The shape of the one variable of a slot, which has one dimension."""
    if len(names) != 1:
        raise ValueError(f"{slot}: expected one variable, got {len(names)}")
    var = program.vars[names[0]]
    if var.dtype != dtype:
        raise TypeError(f"{slot}: expected {dtype}, got {var.dtype}")
    if len(var.shape) != 1:
        raise ValueError(f"{slot}: expected one dimension, got shape {var.shape}")
    return var.shape


CHECKS: dict[str, Callable[[Program, Op], None]] = {
    "initialize": _check_startup,
    "delete": _check_startup,
    "forward": _check_forward,
    "sum": _check_sum,
    "check_gradients": _check_gradient_check,
    "finish_check": _check_finish,
    "update_loss_scaling": _check_scaling,
}


def _nothing(bound: Bound, op: Op) -> Callable[[], Any]:
    return lambda: None


def _delete(bound: Bound, op: Op) -> Callable[[], Any]:
    return lambda: bound.drop(op.inputs["x"])


def _sum(bound: Bound, op: Op) -> Callable[[], Any]:
    pairs = [(bound.arrays[x], bound.arrays[y]) for x, y in zip(op.inputs["x"], op.outputs["out"], strict=True)]
    if isinstance(bound.backend, Gpu):
        from refopt.program.amp_kernels import accumulation

        return accumulation(bound.backend, pairs)

    def run() -> None:
        with np.errstate(all="ignore"):
            for x, y in pairs:
                y += x.astype(y.dtype, copy=False)

    return run


def _gradient_check(bound: Bound, op: Op) -> Callable[[], Any]:
    grads = [bound.arrays[name] for name in op.inputs["x"]]
    positions = list(op.attrs["positions"])
    sums, odd = (bound.arrays[op.outputs[slot][0]] for slot in ("sums", "odd"))
    if isinstance(bound.backend, Gpu):
        from refopt.program.amp_kernels import partial_check

        return partial_check(bound.backend, grads, positions, sums, odd)
    checks.check_gradient_list(grads, None, math.inf, 0.0, checks.host_array)

    def run() -> None:
        checks.require_subnormals()
        sums[...], odd[...] = 0, 0
        with np.errstate(all="ignore"):
            for place, g in zip(positions, grads, strict=True):
                sums[place] = sum_of_squares(checks.flat(g).astype(sums.dtype))  # type: ignore[union-attr]
        odd[0] = any(not np.isfinite(g).all() for g in grads)

    return run


def _finish(bound: Bound, op: Op) -> Callable[[], Any]:
    inputs = {slot: bound.arrays[names[0]] for slot, names in op.inputs.items()}
    outputs = {slot: bound.arrays[names[0]] for slot, names in op.outputs.items()}
    max_norm, epsilon = op.attrs.get("max_norm", math.inf), op.attrs.get("epsilon", 0.0)
    if isinstance(bound.backend, Gpu):
        from refopt.program.amp_kernels import finish_check

        return finish_check(bound.backend, inputs, outputs, max_norm, epsilon)

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


def _scaling(bound: Bound, op: Op) -> Callable[[], Any]:
    arrays = [bound.arrays[op.inputs[slot][0]] for slot in ("found_inf", "loss_scale", "good_steps", "bad_steps")]
    numbers, backend = {name: op.attrs[name] for name in SCALING}, bound.backend
    if isinstance(backend, Gpu):
        from refopt import gpu

        return gpu.loss_scaling(*arrays, **numbers, stream=backend.stream)
    return lambda: cpu.update_loss_scaling(*arrays, **numbers)


RUNNERS: dict[str, Callable[[Bound, Op], Callable[[], Any]]] = {
    "initialize": _nothing,
    "delete": _delete,
    "forward": _nothing,
    "sum": _sum,
    "check_gradients": _gradient_check,
    "finish_check": _finish,
    "update_loss_scaling": _scaling,
}
