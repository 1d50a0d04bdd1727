"""The kernels: every routine merged over any number of tensors, on a CUDA GPU or on the executor.

    step = gpu.plan("lars_momentum", params, grads, velocities)
    for batch in data:
        ...
        step(lr=0.1, mu=0.9)
"""

from typing import Any

import numpy as np

from refopt import catalog, checks
from refopt.checks.arguments import chosen
from refopt.gpu import family
from refopt.gpu.cast import CastPlan, cast_plan, merged_cast
from refopt.gpu.coalesce import Coalesced, coalesce_tensor
from refopt.gpu.loss_scale import loss_scaling, update_loss_scaling
from refopt.gpu.plan import Plan
from refopt.gpu.runtime import device, use
from refopt.gpu.scan import GradientScan, scan

_PLANS = {name: family.planner(routine) for name, routine in catalog.ROUTINES.items()}

merged_lars_momentum, lars_momentum = family.functions(catalog.LARS_MOMENTUM)
merged_sgd, sgd = family.functions(catalog.SGD)
merged_momentum, momentum = family.functions(catalog.MOMENTUM)
merged_adam, adam = family.functions(catalog.ADAM)
merged_adamw, adamw = family.functions(catalog.ADAMW)
merged_adagrad, adagrad = family.functions(catalog.ADAGRAD)
merged_rmsprop, rmsprop = family.functions(catalog.RMSPROP)
merged_lion, lion = family.functions(catalog.LION)
merged_adadelta, adadelta = family.functions(catalog.ADADELTA)
merged_adamax, adamax = family.functions(catalog.ADAMAX)
merged_nadam, nadam = family.functions(catalog.NADAM)
merged_radam, radam = family.functions(catalog.RADAM)
merged_lamb, lamb = family.functions(catalog.LAMB)
merged_novograd, novograd = family.functions(catalog.NOVOGRAD)

__all__ = [
    "CastPlan",
    "Coalesced",
    "GradientScan",
    "Plan",
    "adadelta",
    "adagrad",
    "adam",
    "adamax",
    "adamw",
    "cast_plan",
    "coalesce_tensor",
    "device",
    "lamb",
    "lars_momentum",
    "lion",
    "loss_scaling",
    "merged_adadelta",
    "merged_adagrad",
    "merged_adam",
    "merged_adamax",
    "merged_adamw",
    "merged_cast",
    "merged_lamb",
    "merged_lars_momentum",
    "merged_lion",
    "merged_momentum",
    "merged_nadam",
    "merged_novograd",
    "merged_radam",
    "merged_rmsprop",
    "merged_sgd",
    "momentum",
    "nadam",
    "novograd",
    "plan",
    "radam",
    "rmsprop",
    "scan",
    "sgd",
    "to_device",
    "update_loss_scaling",
    "use",
]


def plan(routine: str, *slots: Any, **options: Any) -> Plan:
    """Bind a routine to its arrays: check them, build and upload the tables, compile.

    Args:
        routine: a name of `refopt.catalog.ROUTINES`.
        slots: the routine's lists of device arrays, in its order.
        options: the routine's optional slots and hyperparameters by name; ``form``, one of the routine's
            forms; ``stream``, the stream that steps run on (the legacy default stream if not given).
    """
    name = routine.removeprefix("merged_") if isinstance(routine, str) else routine
    return _PLANS[chosen("plan: routine", name, _PLANS)](*slots, **options)


def to_device(array: np.ndarray) -> Any:
    """Copy a NumPy array to the device that `device` answers; ``.copy_to_host()`` brings it back.

    The copy has the axis order of a dense array, and C order of any other.

    Raises:
        TypeError: if it is no NumPy array, one of a subclass, which may mean more than its elements, or one of objects.
    """
    checks.check_plain("to_device: array", array)
    return device().to_device(array)
