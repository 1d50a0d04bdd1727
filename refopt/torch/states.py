"""The state of a parameter in PyTorch's layout: made, read and kept up to date.

Tensors of a state are the ones that kernels write. What kernels carry as running powers of beta PyTorch has as the
number of steps, on the CPU; `Scalars` has both, for all tensors of a bucket.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from refopt.catalog import ROUTINES, Routine
from refopt.checks.dtypes import arithmetic, name_of
from refopt.state.steps import BASES, power_after, rho_after
from refopt.torch.formulas import Formula

MASTER = "master_param"


def real_dtype(param: Tensor) -> torch.dtype:
    """The arithmetic type of a parameter."""
    return torch.float64 if param.dtype == torch.float64 else torch.float32


def tensor_states(formula: Formula) -> dict[str, str]:
    """The states of a parameter's shape: by the routine's slot, PyTorch's key."""
    scalars = ROUTINES[formula.routine].scalars
    return {slot: key for slot, key in formula.states.items() if slot not in scalars}


def complete(state: dict[str, Any], param: Tensor, formula: Formula, masters: str | None) -> None:
    """Add to a parameter's state what it does not have yet, as before the first step."""
    if formula.counts and "step" not in state:
        is_double = torch.get_default_dtype() == torch.float64  # PyTorch counts in no 16-bit dtype
        state["step"] = torch.tensor(0.0, dtype=torch.float64 if is_double else torch.float32)
    has_master = masters is not None and param.dtype in (torch.float16, torch.bfloat16)
    dtype = torch.float32 if has_master else param.dtype
    begun = "step" in state and bool(state["step"] > 0)
    for slot, key in tensor_states(formula).items():
        # Adagrad's class makes its state at construction, in the parameter's dtype.
        if state.get(key) is None or (has_master and not begun and state[key].dtype != dtype):
            first = formula.initial.get(slot, 0.0)
            state[key] = torch.full_like(param, first, dtype=dtype, memory_format=torch.preserve_format)
    if has_master and MASTER not in state:
        state[MASTER] = first_master(param, str(masters))


def first_master(param: Tensor, masters: str) -> Tensor:
    """The master of a parameter as it stands: its value in fp32, or a remainder of nothing."""
    if masters == "remainder":
        return torch.zeros_like(param, dtype=torch.uint16, memory_format=torch.preserve_format)
    return param.detach().to(torch.float32, memory_format=torch.preserve_format)


def restore(states: Mapping[Tensor, dict[str, Any]], params: Mapping[Any, Tensor], saved: Mapping[Any, Any]) -> None:
    """Put masters, and fp32 states of 16-bit parameters that have masters, back as they were saved.

    PyTorch's ``load_state_dict`` casts every state to the parameter's dtype.

    Args:
        states: what it has made, by parameter.
        params: by index in the saved states, the parameter.
        saved: the states that were saved, by index.
    """
    for i, param in params.items():
        if MASTER in saved.get(i, ()):
            for key, value in saved[i].items():
                if key != "step" and isinstance(value, Tensor):
                    states[param][key] = value.detach().to(param.device, copy=True)


class Scalars:
    """The scalars of a bucket's tensors.

    Attributes:
        tensors: by slot of the routine, a tensor of one number per parameter, on their device.
    """

    def __init__(self, row: Routine, params: Sequence[Tensor]) -> None:
        """Make room for those of some parameters of one arithmetic type on one device."""
        self._real = real_dtype(params[0])
        self._initial = {slot.name: slot.initial for slot in row.slots}
        self.tensors = {slot: torch.zeros(len(params), dtype=self._real, device=params[0].device)
                        for slot in row.scalars}  # fmt: skip

    def count(self, steps: Sequence[int], numbers: Sequence[Mapping[str, float]]) -> None:
        """Set those that follow from the number of steps.

        Args:
            steps: that each tensor has taken.
            numbers: of the routine, by tensor.
        """
        real: Any = arithmetic(name_of(self._real))
        for slot, tensor in self.tensors.items():
            if slot in BASES:
                base = BASES[slot]
                values = [power_after(real(own[base]), n) for own, n in zip(numbers, steps, strict=True)]
            elif slot == "rho":
                values = [rho_after(real(own["beta2"]), n) for own, n in zip(numbers, steps, strict=True)]
            else:
                continue
            tensor.copy_(torch.tensor(values, dtype=self._real))

    def read(self, states: Sequence[Mapping[str, Any]], formula: Formula) -> None:
        """Take those that PyTorch keeps from the states of the parameters; 1 or 0 where there is none yet."""
        for slot, tensor in self.tensors.items():
            if slot in formula.states:
                key, first = formula.states[slot], self._initial[slot]
                values = [torch.as_tensor(state.get(key, first)).reshape(()) for state in states]
                tensor.copy_(torch.stack([value.to(tensor) for value in values]))

    def write(self, states: Sequence[dict[str, Any]], formula: Formula) -> None:
        """Leave them in the states of the parameters, where PyTorch looks for them."""
        for slot, tensor in self.tensors.items():
            if slot in formula.states:
                for state, value in zip(states, tensor.to("cpu").unbind(), strict=True):
                    state[formula.states[slot]] = value.clone()
