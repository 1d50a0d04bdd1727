"""Host and device memory of offloaded states, see `refopt.program.passes.offload`."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from refopt import cpu
from refopt.checks import c_strides
from refopt.checks.dtypes import numpy_dtype
from refopt.program.gpu.backend import Gpu
from refopt.program.model import Var
from refopt.program.ops.offload import layout
from refopt.program.program import Program

Ends = tuple[Any, Any]  # source and target of a copy


class Hosted(NamedTuple):
    """What a bound schedule needs for states in host memory.

    Attributes:
        arrays: by name, arrays in host memory, and on the device in rings.
        blocks: by index of a copy in ``main``, the memory that it copies.
    """

    arrays: dict[str, Any]
    blocks: dict[int, Ends]


def arrays_of(program: Program, arrays: Mapping[str, Any], backend: Gpu) -> Hosted:
    """Allocate the host memory and the rings; states are those that the caller provides, or their initial values.

    Raises:
        ValueError: naming an array that is missing or has the wrong shape or dtype.
    """
    offloaded, machine = Hosted({}, {}), backend.machine
    back: dict[tuple[str, ...], Ends] = {}
    for i, op in enumerate(program.main):
        if op.type == "copy_in":
            (ring,), names = op.outputs["ring"], op.inputs["x"]
            if ring not in offloaded.arrays:
                offloaded.arrays[ring] = machine.empty(program.vars[ring].shape, np.uint8)
            firsts, size = layout([program.vars[name] for name in names])
            image = np.zeros(size, np.uint8)
            for name, first in zip(names, firsts, strict=True):
                var = program.vars[name]
                np.ndarray(var.shape, numpy_dtype(var.dtype), image, first)[...] = _value(
                    program, arrays, backend, name
                )
            host, near = machine.pinned(image), machine.view(offloaded.arrays[ring], 0, (size,), (1,))
            for block, members in ((host, names), (near, op.outputs["out"])):
                for name, first in zip(members, firsts, strict=True):
                    offloaded.arrays[name] = _view(machine, block, first, program.vars[name])
            offloaded.blocks[i], back[names] = (host, near), (near, host)
        elif op.type == "copy_out" and op.outputs["out"] in back:
            offloaded.blocks[i] = back[op.outputs["out"]]
    return offloaded


def _view(machine: Any, block: Any, first: int, var: Var) -> Any:
    kind = numpy_dtype(var.dtype)
    if not math.prod(var.shape):
        return machine.empty(var.shape, kind)
    return machine.view(block, first, var.shape, c_strides(var.shape, kind.itemsize), kind)


def _value(program: Program, arrays: Mapping[str, Any], backend: Gpu, name: str) -> np.ndarray:
    """The value of a variable before the first step."""
    var = program.vars[name]
    if name in arrays:
        described = backend.describe(arrays[name], f"bind_schedule: arrays: {name!r}")
        if (described.dtype, described.shape) != (var.dtype, var.shape):
            expected, got = f"{var.dtype} of shape {var.shape}", f"{described.dtype} of shape {described.shape}"
            raise ValueError(f"bind_schedule: arrays: {name!r}: expected {expected}, got {got}")
        return backend.read(arrays[name])
    if var.initial is None:
        raise ValueError(f"bind_schedule: arrays: {name!r}: expected an array, since it has no initial value, got none")
    value = np.full(var.shape, 0.0 if isinstance(var.initial, str) else var.initial, numpy_dtype(var.dtype))
    if isinstance(var.initial, str):
        start = _value(program, arrays, backend, var.initial)
        if var.part is not None:
            start = start.reshape(-1)[var.part.first :][: value.size]
        cpu.merged_cast([start], [value])
    return value
