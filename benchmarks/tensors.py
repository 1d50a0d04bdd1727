"""The arrays of an optimizer step, for any routine of the catalogue, in PyTorch on the device."""

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import torch

from refopt import cpu, gpu
from refopt.catalog import Routine, workloads

# Name of a dtype configuration -> dtype of params and grads, and whether there is an fp32 master.
CONFIGS = {
    "fp32": (torch.float32, False),
    "amp": (torch.float16, True),
    "bf16": (torch.bfloat16, False),
}
# What the numbers without a default are in all measurements.
REQUIRED = {"lr": 1e-3, "mu": 0.9}


def shapes_of(name: str) -> list[tuple[int, ...]]:
    """The shapes of a workload's tensors."""
    return [tensor.shape for tensor in workloads.load(name).tensors]


def hypers_of(routine: Routine) -> dict[str, float]:
    """The numbers that a caller has to give."""
    return {hyper.name: REQUIRED[hyper.name] for hyper in routine.hypers if hyper.default is None}


class Tensors:
    """The slots of a routine: ``slots[name]`` is a list with an entry for each parameter.

    Parameters and gradients are normally distributed, masters what parameters were rounded from, states a hundredth as
    large and positive, scalars as they are after the first step; in the configurations of `CONFIGS`.
    """

    def __init__(self, routine: Routine, slots: dict[str, list]) -> None:
        self.routine, self.slots = routine, slots

    @staticmethod
    def make(routine: Routine, shapes: Iterable[tuple[int, ...]], config: str) -> "Tensors":
        """Fill the slots; of the optional ones only the masters, if the configuration has them."""
        dtype, has_masters = CONFIGS[config]
        random = torch.Generator("cuda").manual_seed(0)
        shapes = list(shapes)

        def normal(shape: tuple[int, ...]) -> torch.Tensor:
            return torch.empty(shape, device="cuda").normal_(generator=random)

        exact = [normal(shape) for shape in shapes]
        slots: dict[str, list] = {}
        for slot in routine.slots:
            if slot.optional and not (slot.name == "master_params" and has_masters):
                continue
            if slot.scalar:
                slots[slot.name] = list(torch.full((len(shapes), 1), 0.9, device="cuda"))
            elif slot.name == "params":
                slots[slot.name] = [param.to(dtype) for param in exact]
            elif slot.name == "grads":
                slots[slot.name] = [normal(shape).to(dtype) for shape in shapes]
            elif slot.name == "master_params":
                slots[slot.name] = exact
            else:
                slots[slot.name] = [normal(shape).abs_().mul_(0.01) for shape in shapes]
        return Tensors(routine, slots)

    def plan(self, form: str = "", **options: Any) -> gpu.Plan:
        """A plan over the slots."""
        positional = [self.slots[slot.name] for slot in self.routine.slots if not slot.optional]
        optional = {s.name: self.slots[s.name] for s in self.routine.slots if s.optional and s.name in self.slots}
        options = hypers_of(self.routine) | options
        return gpu.plan(self.routine.name, *positional, **optional, form=form or self.routine.merged_form, **options)

    def clone(self) -> "Tensors":
        return self._each(torch.clone)

    def numpy(self) -> "Tensors":
        """A copy on the host."""
        return self._each(to_numpy)

    def sample(self, most: int = 1 << 20) -> "Tensors":
        """The smallest tensor, the largest, and two between; memory is shared.

        Of larger ones than so many elements, the last so many; where a norm needs the whole tensor, none of them.
        """
        params = self.slots["params"]
        parts = self.routine.elementwise
        order = sorted((k for k, x in enumerate(params) if parts or x.numel() <= most), key=lambda k: params[k].numel())
        if not order:
            raise ValueError(f"sample: expected a tensor of at most {most} elements, got none")
        chosen = sorted({order[round(part * (len(order) - 1) / 3)] for part in range(4)})
        return Tensors(
            self.routine,
            {name: [values[k].reshape(-1)[-most:] for k in chosen] for name, values in self.slots.items()},
        )

    def differing_after(self, step: Callable[[], Any], most: int = 1 << 20, **hyper: Any) -> dict[str, Any]:
        """Take one step more, and compare a sample of the tensors with `refopt.cpu`'s from the same state.

        Args:
            step: of all tensors, with the numbers that the reference is given.
            most: elements of a tensor of the sample.
            hyper: numbers other than those of `hypers_of`, and ``grad_factor``.

        Returns:
            ``differing_bytes``, the number of tensors and elements compared, and ``ok``: nothing differs, parameters
            have changed, and all of it is finite.
        """
        sample = self.sample(most)
        _wait()
        expected = sample.numpy()
        before = [param.tobytes() for param in expected.slots["params"]]
        step()
        _wait()
        expected.step_in_numpy(**hyper)
        bad = sample.differing_bytes(expected)
        written = [slot.name for slot in self.routine.slots if slot.written and slot.name in self.slots]
        finite = all(np.isfinite(x.astype(np.float64)).all() for name in written for x in expected.slots[name])
        moves = any(x.tobytes() != y for x, y in zip(expected.slots["params"], before, strict=True))
        sizes = [x.size for x in expected.slots["params"]]
        return {
            "tensors_compared": len(sizes), "elements_compared": sum(sizes), "differing_bytes": bad,
            "ok": bad == 0 and moves and finite,
        }

    def only(self, count: int) -> "Tensors":
        """The first tensors; the memory is the same."""
        return Tensors(self.routine, {name: values[:count] for name, values in self.slots.items()})

    def step_in_numpy(self, **hyper: Any) -> None:
        """One step by `refopt.cpu`, of a copy on the host."""
        positional = [self.slots[slot.name] for slot in self.routine.slots if not slot.optional]
        optional = {s.name: self.slots[s.name] for s in self.routine.slots if s.optional and s.name in self.slots}
        getattr(cpu, self.routine.merged_name)(*positional, **optional, **(hypers_of(self.routine) | hyper))

    def differing_bytes(self, host: "Tensors") -> int:
        """Bytes in which the slots differ from those of a copy on the host."""
        count = 0
        for name, values in self.slots.items():
            for ours, theirs in zip(values, host.slots[name], strict=True):
                pair = [x.reshape(-1).view(np.uint8) for x in (to_numpy(ours), theirs)]
                count += int((pair[0] != pair[1]).sum())
        return count

    def largest_differences(self, other: "Tensors") -> dict[str, float]:
        """By slot that a step writes, the largest difference, relative to each tensor's largest value in the other."""
        worst = {}
        for slot in (slot.name for slot in self.routine.slots if slot.written and slot.name in self.slots):
            pairs = zip(self.slots[slot], other.slots[slot], strict=True)
            each = [((x.float() - y.float()).abs().max() / y.float().abs().max()).item() for x, y in pairs]
            worst[slot] = max(float("inf") if x != x else x for x in each)
        return worst

    def _each(self, function: Callable[[Any], Any]) -> "Tensors":
        return Tensors(self.routine, {name: [function(x) for x in values] for name, values in self.slots.items()})


def _wait() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def to_numpy(tensor: torch.Tensor) -> np.ndarray:
    """The tensor on the host; bf16 needs ml_dtypes."""
    if tensor.dtype != torch.bfloat16:
        return np.array(tensor.cpu().numpy())
    from ml_dtypes import bfloat16

    return np.array(tensor.view(torch.int16).cpu().numpy()).view(bfloat16)
