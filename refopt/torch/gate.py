"""What decides on the device by how much gradients are scaled and whether a step is taken: no host waits for it."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from refopt import gpu
from refopt.torch.arrays import array_of, follow
from refopt.torch.gradients import Gradients


class Gate:
    """The numbers that plans on one device read before they step: what a ``GradScaler`` says, and what clips.

    Attributes:
        arrays: by the plans' names for them, device arrays of one element; none where nothing scales, clips or skips.
        found_inf: of those, the tensor that says whether the step is left out; ``None`` where nothing does.
    """

    def __init__(self, device: torch.device, gradients: Sequence[Gradients], kind: tuple[bool, bool], max_norm: Any):
        """Make room for the numbers.

        Args:
            device: where the plans are.
            gradients: of all plans, which are clipped.
            kind: whether a scaler has made the gradients larger, and whether it says if the step is left out.
            max_norm: to what norm of all gradients they are clipped, if they are.
        """
        scaled, may_skip = kind
        self._device, self._gradients = device, gradients
        self._scale = torch.ones(1, device=device) if scaled else None
        self._factor = torch.ones(1, device=device) if scaled and max_norm is None else None
        self.found_inf = torch.zeros(1, device=device) if may_skip else None
        given = {"grad_factor": self._factor, "found_inf": self.found_inf}
        self.arrays = {name: array_of(tensor) for name, tensor in given.items() if tensor is not None}
        self._check: gpu.GradientCheck | None = None
        if max_norm is not None:
            scale = None if self._scale is None else array_of(self._scale)
            self._check = gpu.gradient_check(self._of_all(), loss_scale=scale, max_norm=max_norm)
            self.arrays["grad_factor"] = self._check.grad_factor
            self._let_go()

    def take(self, scale: Tensor | None, found_inf: Tensor | None, moved: bool) -> None:
        """Put the numbers of a step there, in stream order.

        Args:
            scale: the scaler's.
            found_inf: the scaler's.
            moved: whether any gradient lies elsewhere than it did.
        """
        if self._scale is not None and scale is not None:
            self._scale.copy_(scale.reshape(1), non_blocking=True)
            if self._factor is not None:
                torch.reciprocal(self._scale, out=self._factor)
        if self.found_inf is not None and found_inf is not None:
            # Of several devices it is a sum.
            self.found_inf.copy_(found_inf.reshape(1), non_blocking=True).clamp_(max=1)
        if self._check is not None:
            follow(self._check, self._device)
            if moved:
                self._move(self._check)
            self._check()

    def _move(self, check: gpu.GradientCheck) -> None:
        """Have the check read the gradients where they lie."""
        if any(each.changed for each in self._gradients):
            check.rebind(self._of_all())
        elif self._device.type == "cpu":
            arrays = self._of_all()
            check.move([0 if array is None else array.address for array in arrays], arrays)
        self._let_go()

    def _let_go(self) -> None:
        """On a GPU do not keep the gradients alive: PyTorch may want their memory."""
        if self._check is not None and self._device.type == "cuda":
            self._check.move(np.concatenate([each.places for each in self._gradients]))

    def _of_all(self) -> list[Any]:
        return [array for each in self._gradients for array in each.arrays()]
