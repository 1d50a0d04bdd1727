"""The numbers that decide, on the device and without waiting, how gradients are scaled and whether a step is taken."""

from collections.abc import Sequence
from functools import partial
from itertools import chain
from typing import Any

import numpy as np
import torch
from torch import Tensor

from refopt import gpu
from refopt.torch.arrays import array_of, follow_stream
from refopt.torch.gradients import Gradients
from refopt.torch.recent import Recent


class Gate:
    """The numbers that plans on one device read before they step: a ``GradScaler``'s, and the clipping factor.

    Attributes:
        arrays: by the plans' names for them, device arrays of one element; none if nothing scales, clips or skips.
        found_inf: of those, the tensor that tells whether to skip the step; ``None`` if there is none.
    """

    def __init__(
        self, device: torch.device, gradients: Sequence[Gradients], kind: tuple[bool, bool, bool], clips: bool
    ) -> None:
        """Make room for the numbers.

        Args:
            device: where the plans are.
            gradients: of all plans.
            kind: whether a scaler has scaled the gradients, whether it may skip the step, and whether gradients are
                multiplied by a factor.
            clips: whether gradients are clipped by a norm that is computed here.
        """
        scaled, may_skip, multiplied = kind
        self._device, self._gradients, self._on_gpu = device, gradients, device.type == "cuda"
        ones = partial(torch.ones, 1, dtype=torch.float32, device=device)
        self._scale = ones() if scaled else None
        self._factor = ones() if not clips and (scaled or multiplied) else None
        self.found_inf = ones().zero_() if may_skip else None
        given = {"grad_factor": self._factor, "found_inf": self.found_inf}
        self.arrays = {name: array_of(tensor) for name, tensor in given.items() if tensor is not None}
        self._checks: Recent[tuple, gpu.GradientCheck] = Recent()  # by kinds of gradients
        if clips:
            self._first = self._check_of_now()
            self.arrays["grad_factor"] = self._first.grad_factor

    def take(
        self, scale: Tensor | None, found_inf: Tensor | None, factor: Tensor | None, max_norm: float | None, moved: bool
    ) -> None:
        """Set the numbers of a step, in stream order.

        Args:
            scale: the scaler's.
            found_inf: the scaler's.
            factor: another factor of the gradients, if they are not clipped here.
            max_norm: the norm to which they are clipped here, if they are.
            moved: whether any gradient has moved, appeared or disappeared.
        """
        if self._scale is not None and scale is not None:
            self._scale.copy_(scale.reshape(1), non_blocking=True)
        if self._factor is not None:
            if factor is None:
                self._factor.fill_(1)
            else:
                self._factor.copy_(factor.reshape(1), non_blocking=True)
            if self._scale is not None:
                self._factor.div_(self._scale)
        if self.found_inf is not None and found_inf is not None:
            # Of several devices it is a sum.
            self.found_inf.copy_(found_inf.reshape(1), non_blocking=True).clamp_(max=1)
        if self._checks:
            check = self._check_of_now(moved)
            follow_stream(check, self._device)
            check(max_norm=np.inf if max_norm is None else max_norm)
            if check is not self._first:  # whose factor the plans read
                self._leave(check.grad_factor)

    def norm(self) -> Tensor:
        """The norm that the last step found, shape ()."""
        return self._tensor_of(self._checks[self._checks.last].grad_norm)[0].clone()

    def _check_of_now(self, moved: bool = False) -> gpu.GradientCheck:
        """The check of the current gradients, at their current addresses."""
        kind = tuple(each.kind for each in self._gradients)
        check = self._checks.get(kind)
        if check is None:
            scale = None if self._scale is None else array_of(self._scale)
            grads = [array for each in self._gradients for array in each.arrays()]
            check, moved = gpu.gradient_check(grads, loss_scale=scale), self._on_gpu
        self._checks.use(kind, check)
        if moved:
            places, arrays = zip(*(each.located() for each in self._gradients), strict=True)
            check.move(np.concatenate(places), None if self._on_gpu else list(chain(*arrays)))
        return check

    def _tensor_of(self, array: Any) -> Tensor:
        """A device array of a check as a tensor: on a GPU its memory, else a copy."""
        if self._on_gpu:
            return torch.as_tensor(array, device=self._device)
        return torch.from_numpy(array.copy_to_host())

    def _leave(self, factor: Any) -> None:
        if self._on_gpu:
            self._tensor_of(self._first.grad_factor).copy_(self._tensor_of(factor), non_blocking=True)
        else:
            self._first.grad_factor.copy_to_device(factor.copy_to_host())
