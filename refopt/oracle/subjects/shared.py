"""Functions on cases that adapters of several libraries share."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from refopt.catalog import Routine
from refopt.oracle.cases import Dtypes, alike
from refopt.oracle.exact.cases import Case
from refopt.oracle.subject import Lacks
from refopt.oracle.variants import initial_of


def check_dtypes(case: Case, usual: Sequence[str], stores: Callable[[str], Dtypes] = alike) -> None:
    """Refuse unsupported dtypes: a gradient whose dtype differs from the parameter's, unusual ones in a list.

    ``stores`` gives the dtypes of a tensor's slots by that of the parameter.
    """
    params = {x.dtype.name for x in case.params}
    if len(params) > 1 and params - {*usual}:
        raise Lacks("16-bit arithmetic mixed with another")
    for i in range(len(case)):
        of = case.tensor(i)
        param, grad, state, master = stores(of["params"].dtype.name)
        own = {"params": param, "grads": grad, "master_params": master} | dict.fromkeys(case.routine.states, state)
        if any(of[name] is not None and of[name].dtype.name != dtype for name, dtype in own.items()):
            raise Lacks("gradients or states of another dtype than the optimizer's")


def is_initial(case: Case, states: Iterable[str]) -> bool:
    """Whether no step has been taken and the states have their initial values."""
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


def as_told(row: Routine, name: str, x: Any) -> float:
    """A number of a routine as a Python int or float."""
    return int(x) if any(hyper.name == name and hyper.whole for hyper in row.hypers) else float(x)
