"""What adapters of several libraries do with a case."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from refopt.oracle.cases import Case
from refopt.oracle.variants import initial_of
from refopt.oracle.variants.variant import STEP_NUMBER
from refopt.state.steps import BASES, power_after, rho_after


def check_dtypes(case: Case, usual: Sequence[str]) -> None:
    """Refuse what is not taken: a gradient or state of another dtype than the parameter, unusual ones in a list."""
    params = {x.dtype.name for x in case.params}
    if len(params) > 1 and params - {*usual}:
        raise NotImplementedError("16-bit arithmetic beside another")
    for i in range(len(case)):
        of = case.tensor(i)
        dtypes = {x.dtype.name for name, x in of.items() if x is not None and name not in case.routine.scalars}
        if len(dtypes) > 1:
            raise NotImplementedError("gradients and states of another dtype than the parameter")


def is_initial(case: Case, states: Iterable[str]) -> bool:
    """Whether no step has been taken, and the states are what they are at first."""
    if case.count != 1:
        return False
    for slot in case.routine.slots:
        if slot.name in states:
            if slot.scalar:
                first = 0.0 if isinstance(slot.initial, str) else slot.initial
            else:
                first = initial_of(case.routine, slot.name, case.steps[0])
            for x in case.lists()[slot.name]:
                if x is not None and x.tobytes() != np.full(x.shape, first, x.dtype).tobytes():
                    return False
    return True


def scalar_after(name: str, numbers: Mapping[str, Any], steps: int, real: Any) -> np.ndarray:
    """A power, the rho of RAdam, or the number of the step, as it is after so many steps."""
    if name == STEP_NUMBER.name:
        return np.full(1, steps + 1, real)
    if name == "rho":
        return np.full(1, rho_after(real(numbers["beta2"]), steps), real)
    return np.full(1, power_after(real(numbers[BASES[name]]), steps), real)
