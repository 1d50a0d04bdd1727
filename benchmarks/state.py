"""The tensors of an optimizer step, in PyTorch on the device and in NumPy on the host."""

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import numpy as np
import torch

# Name of a dtype configuration -> dtype of params and grads, and whether there is an fp32 master.
CONFIGS = {
    "fp32": (torch.float32, False),
    "amp": (torch.float16, True),
    "bf16": (torch.bfloat16, False),
}


class State(NamedTuple):
    """Lists of tensors, one entry for each parameter; ``masters`` is None without master parameters."""

    params: list
    grads: list
    velocities: list
    masters: list | None

    @staticmethod
    def make(shapes: Iterable[tuple[int, ...]], config: str, seed: int = 0) -> "State":
        """Normally distributed numbers on the device, velocities a hundredth as large."""
        dtype, master = CONFIGS[config]
        random = torch.Generator("cuda").manual_seed(seed)

        def normal(shape: tuple[int, ...], scale: float, to: torch.dtype) -> torch.Tensor:
            x = torch.empty(shape, device="cuda").normal_(generator=random)
            return (x if scale == 1 else x.mul_(scale)).to(to)

        shapes = list(shapes)
        exact = [normal(shape, 1, torch.float32) for shape in shapes]
        params = [p.to(dtype) for p in exact]
        grads = [normal(shape, 1, dtype) for shape in shapes]
        velocities = [normal(shape, 0.01, torch.float32) for shape in shapes]
        return State(params, grads, velocities, exact if master else None)

    def clone(self) -> "State":
        return self._each(torch.clone)

    def numpy(self) -> "State":
        """A copy on the host."""
        return self._each(to_numpy)

    def _each(self, function: Callable[[Any], Any]) -> "State":
        params, grads, velocities = ([function(x) for x in values] for values in self[:3])
        return State(params, grads, velocities, self.masters and [function(x) for x in self.masters])

    def written(self) -> dict[str, list]:
        """What a step changes."""
        slots = {"params": self.params, "velocities": self.velocities, "master_params": self.masters}
        return {name: values for name, values in slots.items() if values}

    def only(self, start: int, stop: int) -> "State":
        """Some of the tensors; the memory is the same."""
        params, grads, velocities = (values[start:stop] for values in self[:3])
        return State(params, grads, velocities, self.masters and self.masters[start:stop])


def to_numpy(tensor: torch.Tensor) -> np.ndarray:
    """The tensor on the host; bf16 needs ml_dtypes."""
    if tensor.dtype != torch.bfloat16:
        return tensor.cpu().numpy()
    from ml_dtypes import bfloat16

    return tensor.view(torch.int16).cpu().numpy().view(bfloat16)


def differing_bytes(device: State, host: State) -> int:
    """Bytes in which what a step has written differs between device and host."""
    count = 0
    for name, values in device.written().items():
        for ours, theirs in zip(values, host.written()[name], strict=True):
            pair = [x.reshape(-1).view(np.uint8) for x in (to_numpy(ours), theirs)]
            count += int((pair[0] != pair[1]).sum())
    return count


def largest_differences(ours: State, theirs: State) -> dict[str, float]:
    """By slot, the largest difference of two states, relative to each tensor's largest value."""
    worst = {}
    for name, values in ours.written().items():
        pairs = zip(values, theirs.written()[name], strict=True)
        each = [((x.float() - y.float()).abs().max() / y.float().abs().max()).item() for x, y in pairs]
        worst[name] = max(float("inf") if x != x else x for x in each)
    return worst
