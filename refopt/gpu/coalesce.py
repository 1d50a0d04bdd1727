"""Many tensors in one buffer on the device: ``refopt.cpu.coalesce``, filled and emptied by merged casts."""

import operator
from collections.abc import Sequence
from typing import Any

import numpy as np

from refopt import checks
from refopt.checks.arguments import chosen, is_number
from refopt.cpu import coalesce
from refopt.gpu import words
from refopt.gpu.arrays import describer, device_of, device_of_lists
from refopt.gpu.cast import CastPlan
from refopt.gpu.cuda import address
from refopt.gpu.exclusive import Exclusive, in_turn
from refopt.gpu.runtime import Device, device

CHUNK = {"bytes": 256, "elements": 256}


class Coalesced(Exclusive, coalesce.Coalesced):
    """`refopt.cpu.coalesce.Coalesced` on a device: one launch for each pair of dtypes, in stream order.

    ``gather`` and ``scatter`` are planned once, and again when the tensors differ from the previous call. Calls from
    several threads run one after another; the object cannot be copied.
    """

    def __init__(self, views: list[Any], buffer: Any, layout: coalesce.Layout, stream: Any) -> None:
        coalesce.Coalesced.__init__(self, views, buffer, layout)
        Exclusive.__init__(self, device(device_of([buffer])), stream, "coalesce_tensor")
        self._describe = describer(self.device.name)
        self._plans: dict[str, tuple[list[Any], Any]] = {}

    def plan(self, way: str) -> CastPlan:
        """The plan of the last ``"gather"`` or ``"scatter"``, with its launches and bytes.

        Raises:
            ValueError: if ``way`` is neither, or there was no such call yet.
        """
        if (way := chosen("plan: way", way, ("gather", "scatter"))) not in self._plans:
            raise ValueError(f"plan: way: expected one that has been used, got {way}")
        return self._plans[way][1]

    def _matched(self, name: str, tensors: Any) -> None:
        """The reference's check, skipped for the previous call's tensors, since it takes as long as the copy."""
        arrays, _ = self._plans.get(name, ([], None))
        before = arrays[: len(self.views)] if name == "gather" else arrays[len(self.views) :]
        same = isinstance(tensors, list | tuple) and len(tensors) == len(before)
        if not (same and all(x is y for x, y in zip(tensors, before, strict=True))):
            super()._matched(name, tensors)

    @in_turn
    def _cast(self, sources: Sequence[Any], targets: Sequence[Any], scale: Any, names: checks.Names) -> None:
        arrays = [*sources, *targets]
        before, plan = self._plans.get(names[0], ([], None))
        numbers = plan and is_number(scale) and isinstance(plan.scale, float)
        same = plan and (numbers or scale is plan.scale) and all(map(operator.is_, before, arrays))
        if not same:
            plan = CastPlan(sources, targets, scale, self._stream, names)
            self._plans[names[0]] = arrays, plan
        if plan.stream != self._stream:
            plan.stream = self._stream
        plan(scale=scale if same and numbers else None)


def coalesce_tensor(inputs: Any, *, scale: Any = 1.0, stream: Any = 0, **attributes: Any) -> Coalesced:
    """`refopt.cpu.coalesce_tensor` for device arrays, in stream order.

    The smallest piece of memory is 256 bytes; the views are device arrays. The buffer is on the machine of the inputs;
    without inputs, on the one that `refopt.gpu.device` returns.
    """
    machine = device(device_of_lists(inputs, attributes.get("outputs")))
    handle = machine.stream(stream, "coalesce_tensor: stream")

    def on_device(layout: coalesce.Layout, shapes: list, strides: list, constant: np.ndarray) -> Coalesced:
        buffer = machine.empty((layout.total,), constant.dtype)
        _fill(machine, buffer, constant, handle)
        places = zip(map(int, layout.offsets), shapes, strides, strict=True)
        return Coalesced([machine.view(buffer, *place) for place in places], buffer, layout, stream)

    return coalesce.coalesced(inputs, describer(machine.name), CHUNK, on_device, scale=scale, **attributes)


def _fill(machine: Device, buffer: Any, constant: np.ndarray, stream: Any) -> None:
    """Fill every element, padding included, with one launch."""
    size = buffer.size * constant.itemsize
    word = np.frombuffer(np.repeat(constant, 8 // constant.itemsize).tobytes(), np.int64)
    machine.prepare(words.fill, -(-size // words.FILL), words.BOUNDS[0], (address(buffer), size, int(word[0])))(stream)
