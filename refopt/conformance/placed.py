"""Host arrays put on a device where the test wants them: at any offset, in any axis order, between guards."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from refopt import gpu, simt
from refopt.checks import flat
from refopt.conformance.cases import Case, Outcome
from refopt.gpu.runtime import Device

GUARD = 64  # bytes on either side, of a pattern that a stray store would spoil
PATTERN = 0x5C


class Placed:
    """A copy of a dense host array, ``shift`` elements off an aligned address. ``array`` is the device array."""

    def __init__(self, machine: Device, host: np.ndarray, shift: int = 0) -> None:
        self._at = GUARD + shift * host.dtype.itemsize
        self._like = host
        image = np.full(self._at + host.nbytes + GUARD, PATTERN, np.uint8)
        image[self._at : self._at + host.nbytes] = np.frombuffer(flat(host).tobytes(), np.uint8)  # type: ignore[union-attr]
        self._memory = machine.to_device(image)
        self.array = self._view(machine)

    def _view(self, machine: Device) -> Any:
        if machine.name == "executor":
            return simt.DeviceArray(self._memory.buffer, self._shaped(self._memory.data))
        return _View(self._memory, self._at, self._like)

    def _shaped(self, image: np.ndarray) -> np.ndarray:
        return np.ndarray(self._like.shape, self._like.dtype, image, self._at, self._like.strides)

    def read(self) -> np.ndarray:
        """The array as it is now; an AssertionError if anything around it has changed."""
        image = self._memory.copy_to_host()
        stop = self._at + self._like.nbytes
        outside = np.concatenate([image[: self._at], image[stop:]])
        assert (outside == PATTERN).all(), "bytes next to an array were written"
        return self._shaped(image)


class _View:
    """Elements within a device array of bytes, as any library would offer them."""

    def __init__(self, memory: Any, at: int, like: np.ndarray) -> None:
        self.memory, self.shape, self.dtype = memory, like.shape, like.dtype
        address = memory.__cuda_array_interface__["data"][0] + at
        self.__cuda_array_interface__ = {
            "shape": like.shape, "typestr": like.dtype.str, "version": 3,
            "strides": like.strides, "data": (address if like.size else 0, False),
        }  # fmt: skip


class PlacedCase:
    """The arrays of a case on a device."""

    def __init__(self, machine: Device, case: Case, shifts: Sequence[int] = (0,)) -> None:
        self._machine = machine
        self.case = case
        self._slots: list[list[Any]] = [
            [x if x is None else Placed(machine, x, shifts[i % len(shifts)]) for i, x in enumerate(values)]
            for values in (case.params, case.grads, case.velocities, case.outcome()["masters"])
        ]
        self.params, self.grads, self.velocities, masters = (
            [x if x is None else x.array for x in slot] for slot in self._slots
        )
        self.masters = masters if case.masters is not None else None

    def plan(self, form: str, **hyper: Any) -> gpu.Plan:
        """A plan over the arrays, with the choices of the case."""
        return gpu.plan(
            "lars_momentum", self.params, self.grads, self.velocities,
            master_params=self.masters, form=form, **self.case.choices, **hyper,
        )  # fmt: skip

    def outcome(self) -> Outcome:
        """What is on the device now; an AssertionError if a gradient or anything between arrays has changed."""
        self._machine.synchronize()
        slots: list[list[Any]] = [[x if x is None else x.read() for x in slot] for slot in self._slots]
        p, g, v, m = slots
        for i, (got, given) in enumerate(zip(g, self.case.grads, strict=True)):
            assert given is None or got.tobytes() == given.tobytes(), f"grads[{i}] was written"
        return {"params": p, "velocities": v, "masters": m}


def kernels(form: str, machine: Device, shifts: Sequence[int] = (0,)) -> Callable[[Case], Outcome]:
    """The implementation that runs a case with one plan of a form on a device."""

    def run(case: Case) -> Outcome:
        placed = PlacedCase(machine, case, shifts)
        step = placed.plan(form)
        for hyper in case.steps:
            step(**hyper)
        return placed.outcome()

    return run


def merged_step(form: str, machine: Device) -> Callable[..., None]:
    """`refopt.gpu.merged_lars_momentum` for NumPy arrays, which it copies to the device and back."""

    def step(params, grads, velocities, *, master_params=None, **hyper):
        slots = (params, grads, velocities, master_params or [None] * len(params))
        placed: list[list[Any]] = [[x if x is None else Placed(machine, x) for x in slot] for slot in slots]
        p, g, v, m = ([x if x is None else x.array for x in slot] for slot in placed)
        gpu.merged_lars_momentum(p, g, v, master_params=m, form=form, **hyper)
        for slot, values in zip(slots, placed, strict=True):
            for host, array in zip(slot, values, strict=True):
                if host is not None and host.flags.writeable:
                    host[...] = array.read()

    return step
