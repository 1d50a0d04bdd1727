"""Masters of 16-bit parameters: made, restored, and had to follow what others write into the parameters."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from refopt.torch import host
from refopt.torch.sharded import is_dtensor, like, local

MASTER = "master_param"
DTYPES: dict[Any, torch.dtype] = {"fp32": torch.float32, "remainder": torch.uint16}


def has_master(param: Tensor, masters: str | None) -> bool:
    """Whether a parameter has a master of the kind that is asked for."""
    return masters is not None and param.dtype in (torch.float16, torch.bfloat16)


def first_master(param: Tensor, masters: str) -> Tensor:
    """The master of a parameter as it stands: its value in fp32, or a remainder of nothing."""
    part = local(param).detach()
    if masters == "remainder":
        return like(param, torch.zeros_like(part, dtype=torch.uint16, memory_format=torch.preserve_format))
    return like(param, part.to(torch.float32, memory_format=torch.preserve_format))


def follow(master: Tensor, param: Tensor) -> None:
    """Have a master be that of its parameter as it stands.

    An element of fp32 that rounds to what the parameter stores has not been written, and stays. A remainder makes a
    number that rounds to the parameter's whatever that is, so it tells nothing, and begins anew.
    """
    mine, part = local(master), local(param).detach()
    if mine.dtype == torch.uint16:
        mine.zero_()
    else:
        mine.copy_(torch.where(mine.to(part.dtype) == part, mine, part.to(mine.dtype)))


def restore(
    states: Mapping[Tensor, dict[str, Any]], params: Mapping[Any, Tensor], saved: Mapping[Any, Any],
    masters: Mapping[Tensor, str | None],
) -> None:
    """Put masters, and the states of 16-bit parameters that have masters, back as they were saved, and in fp32.

    PyTorch's ``load_state_dict`` casts every state to the parameter's dtype.

    Args:
        states: what it has made, by parameter.
        params: by index in the saved states, the parameter.
        saved: the states that were saved, by index.
        masters: by parameter, what kind of masters it has.
    """
    for i, param in params.items():
        if has_master(param, masters[param]):
            for key, value in saved.get(i, {}).items():
                if key != "step" and isinstance(value, Tensor):
                    dtype = torch.float32 if value.is_floating_point() else value.dtype
                    states[param][key] = value.detach().to(param.device, dtype, copy=True)


class Masters:
    """The masters of a bucket, and how often PyTorch has counted a write into them and their parameters."""

    def __init__(self, params: Sequence[Tensor], masters: Sequence[Tensor | None]) -> None:
        """Take those that there are, as being of what their parameters store."""
        self._pairs = [(param, x) for param, x in zip(params, masters, strict=True) if x is not None]
        self._counted = [x for pair in self._pairs for x in pair]
        self._sharded, self._versions_of = any(map(is_dtensor, self._counted)), host.form().versions
        self.known()

    def known(self) -> None:
        """Say that what has been written so far is known."""
        if self._pairs:
            self._versions = self._versions_now()

    def follow(self, compares: bool) -> None:
        """Have them be those of parameters that somebody has written since; ``compares`` looks at every fp32 one."""
        if not self._pairs:
            return
        written = self._versions_now() != self._versions
        if not (compares or written.any()):
            return
        for (param, master), (of_param, of_master) in zip(self._pairs, written.tolist(), strict=True):
            # Who has written both, as a checkpoint that is loaded in place does, knows the remainder.
            is_remainder = master.dtype == torch.uint16
            if (of_param and not (is_remainder and of_master)) or (compares and not is_remainder):
                follow(master, param)
        self.known()

    def follow_all(self) -> None:
        """Have all be those of their parameters as they stand."""
        for param, master in self._pairs:
            follow(master, param)
        self.known()

    def _versions_now(self) -> Any:
        """Of each parameter and its master, (n, 2); of a DTensor both what is written as a whole and as a part."""
        found = self._versions_of(self._counted)
        if self._sharded:
            parts = [local(x) for x in self._counted]
            found += [0 if part is x else part._version for part, x in zip(parts, self._counted, strict=True)]
        return found.reshape(-1, 2)
