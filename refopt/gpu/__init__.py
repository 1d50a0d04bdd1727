"""The kernels: every routine merged over any number of tensors, on a CUDA GPU or on the executor.

    >>> import numpy as np
    >>> from refopt import gpu
    >>> with gpu.use("executor"):  # or "gpu"
    ...     params, grads, velocities = ([gpu.to_device(np.ones(n, np.float32)) for n in (300, 5)] for _ in range(3))
    >>> step = gpu.plan("momentum", params, grads, velocities)
    >>> step(lr=0.1, mu=0.9)
    >>> step.launches, velocities[1].copy_to_host()[0], params[1].copy_to_host()[0]
    (1, np.float32(1.9), np.float32(0.81))

To read kernels and to write your own: `refopt.gpu.ladder`, `refopt.gpu.cuda`, `refopt.gpu.parts`,
`refopt.gpu.exactness`, `refopt.gpu.show`, `refopt.gpu.timing`. For kernels elsewhere in refopt: `refopt.gpu.target`
and `refopt.gpu.kernels`, which make them; `refopt.gpu.compiler`, what they need from a compiler; `refopt.gpu.cache`,
compiled kernels on disk; `refopt.gpu.machine`, the properties of a device; `refopt.gpu.vectors` and
`refopt.gpu.words`, loads and stores; `refopt.gpu.tables`, chunks; `refopt.gpu.arrays`, `refopt.gpu.runtime` and
`refopt.gpu.streams`, devices, their arrays and streams. For programs: `refopt.gpu.coalesce` and the kernels of
`refopt.gpu.gradient_check` and `refopt.gpu.norms`.
"""

from typing import TYPE_CHECKING, Any

import numpy as np

from refopt import checks
from refopt.catalog import KNOWN
from refopt.checks.arguments import chosen
from refopt.gpu import family
from refopt.gpu.cast import CastPlan, cast_plan, merged_cast
from refopt.gpu.check_plan import GradientCheck, gradient_check
from refopt.gpu.coalesce import Coalesced, coalesce_tensor
from refopt.gpu.lazy_plan import LazyPlan, lazy_plan, merged_lazy
from refopt.gpu.loss_scale import loss_scaling, update_loss_scaling
from refopt.gpu.plan import Plan
from refopt.gpu.runtime import device, use
from refopt.gpu.transfer import Transfer

__all__ = [
    "CastPlan", "Coalesced", "GradientCheck", "LazyPlan", "Plan", "Transfer", "cast_plan", "coalesce_tensor", "device",
    "gradient_check", "lazy_plan", "loss_scaling", "merged_cast", "merged_lazy", "plan", "to_device",
    "update_loss_scaling", "use",
]

_PLANS = {name: family.planner(routine) for name, routine in KNOWN.items()}
for _row in KNOWN.values():  # the kernels of every optimizer
    globals()[_row.merged_name], globals()[_row.name] = family.functions(_row)
    __all__ += _row.merged_name, _row.name


if TYPE_CHECKING:
    from refopt.gpu._functions import *  # noqa: F403


def plan(routine: str, *slots: Any, **options: Any) -> Plan:
    """Bind a routine to its arrays: check them, build and upload the tables, compile.

    Args:
        routine: a name of `refopt.catalog.KNOWN`.
        slots: the routine's lists of device arrays, in its order.
        options: the routine's optional slots and hyperparameters by name; ``form``, one of the routine's
            forms; ``stream``, the stream that steps run on (the legacy default stream if not given).
    """
    name = routine.removeprefix("merged_") if isinstance(routine, str) else routine
    return _PLANS[chosen("plan: routine", name, _PLANS)](*slots, **options)


def to_device(array: np.ndarray) -> Any:
    """Copy a NumPy array to the device that `device` returns; ``.copy_to_host()`` copies it back.

    The copy of a dense array keeps its axis order; the copy of any other is in C order.

    Raises:
        TypeError: if it is not a NumPy array, or is one of a subclass, whose meaning may go beyond its elements, or of
            objects.
    """
    checks.check_plain("to_device: array", array)
    return device().to_device(array)
