"""Masters of 16-bit parameters: making them, and following other code's writes to the parameters."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from refopt.torch.sharded import is_dtensor, like, local

MASTER = "master_param"
DTYPES: dict[Any, torch.dtype] = {"fp32": torch.float32, "remainder": torch.uint16, "remainder8": torch.int8}


def has_master(param: Tensor, masters: str | None) -> bool:
    """Whether a parameter has a master, given the kind of masters."""
    return masters is not None and param.dtype in (torch.float16, torch.bfloat16)


def first_master(param: Tensor, masters: str) -> Tensor:
    """The master of a parameter's current value: the value in fp32, or a remainder of 0."""
    part = local(param).detach()
    return like(param, part.float() if masters == "fp32" else torch.zeros_like(part, dtype=DTYPES[masters]))


def follow(master: Tensor, param: Tensor) -> None:
    """Make a master follow the current value of its parameter.

    An fp32 element that rounds to the stored parameter stays, since the parameter was not written. A remainder joins
    any parameter to a number that rounds to it, so it cannot tell, and is reset to 0. A master of another shape or on
    another device stays: the next step refuses it.
    """
    mine, part = local(master), local(param).detach()
    if (mine.shape, mine.device) != (part.shape, part.device):
        return
    if not mine.is_floating_point():
        mine.zero_()
    else:
        mine.copy_(torch.where(mine.to(part.dtype) == part, mine, part.to(mine.dtype)))


class Masters:
    """The masters of a bucket, and what tells writes to them and their parameters: PyTorch's counts, and addresses."""

    def __init__(self, params: Sequence[Tensor], masters: Sequence[Tensor | None], form: Any) -> None:
        """Record the masters that exist, assuming that they match their parameters."""
        self._pairs = [(param, x) for param, x in zip(params, masters, strict=True) if x is not None]
        self._counted = [x for pair in self._pairs for x in pair]
        self._sharded, self._versions_of = any(map(is_dtensor, self._counted)), form.versions
        self._places = self._places_now()
        self.known()

    def known(self) -> None:
        """Record that all writes so far are known."""
        if self._pairs:
            self._known = self._counts_now()

    def follow(self, compares: bool, in_place: bool = False) -> None:
        """Follow parameters that other code has written or replaced since; ``compares`` compares all fp32 masters.

        With ``in_place``, none has been replaced.
        """
        if not self._pairs:
            return
        counts = self._counts_now()
        if in_place and not compares and counts.tobytes() == self._known.tobytes():
            return
        places = self._places if in_place else self._places_now()
        written = (counts != self._known).any(axis=-1) | (places != self._places)
        self._places = places
        if not (compares or written.any()):
            return
        for (param, master), (of_param, of_master) in zip(self._pairs, written.tolist(), strict=True):
            # Code that has written both, such as a checkpoint loaded in place, knows the remainder.
            is_remainder = not master.is_floating_point()
            if (of_param and not (is_remainder and of_master)) or (compares and not is_remainder):
                follow(master, param)
        self.known()

    def follow_all(self) -> None:
        """Make all masters follow the current values of their parameters."""
        for param, master in self._pairs:
            follow(master, param)
        self.known()

    def _counts_now(self) -> np.ndarray:
        """PyTorch's counts of writes to each parameter and its master, (n, 2, 1); of DTensors also to parts."""
        found = [self._versions_of(self._counted)]
        if self._sharded:
            found.append(self._versions_of(list(map(local, self._counted))))
        return np.stack(found, axis=-1).reshape(-1, 2, len(found))

    def _places_now(self) -> np.ndarray:
        """The address of each, (n, 2)."""
        return np.array([local(x).data_ptr() for x in self._counted], np.int64).reshape(-1, 2)
